//! Reading msgpack that comes from outside: by hand, because its shapes vary by version and unknown parts are
//! passed over, and without trusting a single length.

use rmp::Marker;

/// What is wrong with some bytes, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MsgpackError {
    #[error("{what} ends early")]
    Short { what: &'static str },
    #[error("{what} is {found}, expected {expected}")]
    Kind { what: &'static str, found: &'static str, expected: &'static str },
    #[error("{what} is out of range")]
    Range { what: &'static str },
    #[error("{what} claims {claimed} items, but only {left} bytes are left")]
    Length { what: &'static str, claimed: usize, left: usize },
    #[error("values are nested deeper than {0}")]
    Deep(usize),
}

type Result<T> = std::result::Result<T, MsgpackError>;

/// As deep as anything sensible goes.
const MAX_DEPTH: usize = 32;

/// An integer of either sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Int {
    Positive(u64),
    Negative(i64),
}

/// What kind of value comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Nil,
    Bool,
    Int,
    Float,
    Text,
    Bytes,
    Array,
    Map,
    Other,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Bool => "a boolean",
            Self::Int => "an integer",
            Self::Float => "a float",
            Self::Text => "a text",
            Self::Bytes => "bytes",
            Self::Array => "an array",
            Self::Map => "a map",
            Self::Other => "an extension",
        }
    }
}

/// A place in a run of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn take(&mut self, count: usize, what: &'static str) -> Result<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(MsgpackError::Short { what })?;
        self.bytes = rest;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self, what: &'static str) -> Result<u64> {
        let (taken, rest) = self.bytes.split_first_chunk::<N>().ok_or(MsgpackError::Short { what })?;
        self.bytes = rest;
        Ok(taken.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    /// The marker that comes next, passed over.
    fn next_marker(&mut self, what: &'static str) -> Result<Marker> {
        let (first, rest) = self.bytes.split_first().ok_or(MsgpackError::Short { what })?;
        self.bytes = rest;
        Ok(Marker::from_u8(*first))
    }

    fn marker(&self, what: &'static str) -> Result<Marker> {
        self.bytes.first().map(|byte| Marker::from_u8(*byte)).ok_or(MsgpackError::Short { what })
    }

    pub(crate) fn kind(&self, what: &'static str) -> Result<Kind> {
        Ok(match self.marker(what)? {
            Marker::Null => Kind::Nil,
            Marker::True | Marker::False => Kind::Bool,
            Marker::FixPos(_) | Marker::FixNeg(_) | Marker::U8 | Marker::U16 | Marker::U32 | Marker::U64 => {
                Kind::Int
            }
            Marker::I8 | Marker::I16 | Marker::I32 | Marker::I64 => Kind::Int,
            Marker::F32 | Marker::F64 => Kind::Float,
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => Kind::Text,
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => Kind::Bytes,
            Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => Kind::Array,
            Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => Kind::Map,
            _ => Kind::Other,
        })
    }

    fn unexpected<T>(&self, what: &'static str, expected: &'static str) -> Result<T> {
        Err(MsgpackError::Kind { what, found: self.kind(what)?.name(), expected })
    }

    /// Passes a nil over; false when something else comes.
    pub(crate) fn nil(&mut self, what: &'static str) -> Result<bool> {
        let (first, rest) = self.bytes.split_first().ok_or(MsgpackError::Short { what })?;
        let nil = Marker::from_u8(*first) == Marker::Null;
        if nil {
            self.bytes = rest;
        }
        Ok(nil)
    }

    pub(crate) fn int(&mut self, what: &'static str) -> Result<Int> {
        let start = *self;
        let signed = |value: i64| u64::try_from(value).map_or(Int::Negative(value), Int::Positive);
        Ok(match self.next_marker(what)? {
            Marker::FixPos(value) => Int::Positive(u64::from(value)),
            Marker::FixNeg(value) => Int::Negative(i64::from(value)),
            Marker::U8 => Int::Positive(self.number::<1>(what)?),
            Marker::U16 => Int::Positive(self.number::<2>(what)?),
            Marker::U32 => Int::Positive(self.number::<4>(what)?),
            Marker::U64 => Int::Positive(self.number::<8>(what)?),
            Marker::I8 => signed(i64::from(self.number::<1>(what)? as i8)),
            Marker::I16 => signed(i64::from(self.number::<2>(what)? as i16)),
            Marker::I32 => signed(i64::from(self.number::<4>(what)? as i32)),
            Marker::I64 => signed(self.number::<8>(what)?.cast_signed()),
            _ => return start.unexpected(what, "an integer"),
        })
    }

    /// An integer that is not negative and fits.
    pub(crate) fn uint<T: TryFrom<u64>>(&mut self, what: &'static str) -> Result<T> {
        match self.int(what)? {
            Int::Positive(value) => T::try_from(value).map_err(|_| MsgpackError::Range { what }),
            Int::Negative(_) => Err(MsgpackError::Range { what }),
        }
    }

    pub(crate) fn float(&mut self, what: &'static str) -> Result<f64> {
        let marker = self.marker(what)?;
        match self.kind(what)? {
            Kind::Int => Ok(match self.int(what)? {
                Int::Positive(value) => value as f64,
                Int::Negative(value) => value as f64,
            }),
            Kind::Float => {
                self.take(1, what)?;
                Ok(match marker {
                    Marker::F32 => f64::from(f32::from_bits(self.number::<4>(what)? as u32)),
                    _ => f64::from_bits(self.number::<8>(what)?),
                })
            }
            _ => self.unexpected(what, "a number"),
        }
    }

    pub(crate) fn text(&mut self, what: &'static str) -> Result<&'a str> {
        let start = *self;
        let len = match self.next_marker(what)? {
            Marker::FixStr(len) => u64::from(len),
            Marker::Str8 => self.number::<1>(what)?,
            Marker::Str16 => self.number::<2>(what)?,
            Marker::Str32 => self.number::<4>(what)?,
            _ => return start.unexpected(what, "a text"),
        };
        std::str::from_utf8(self.take(len as usize, what)?).map_err(|_| MsgpackError::Range { what })
    }

    pub(crate) fn bytes(&mut self, what: &'static str) -> Result<&'a [u8]> {
        let start = *self;
        let len = match self.next_marker(what)? {
            Marker::Bin8 => self.number::<1>(what)?,
            Marker::Bin16 => self.number::<2>(what)?,
            Marker::Bin32 => self.number::<4>(what)?,
            _ => return start.unexpected(what, "bytes"),
        };
        self.take(len as usize, what)
    }

    /// How many items follow. Each takes a byte at least, so more than there are bytes left is a lie.
    fn length(&mut self, of: Kind, what: &'static str, per_item: usize) -> Result<usize> {
        let marker = self.marker(what)?;
        if self.kind(what)? != of {
            return self.unexpected(what, of.name());
        }
        self.take(1, what)?;
        let len = match marker {
            Marker::FixArray(len) | Marker::FixMap(len) => u64::from(len),
            Marker::Array16 | Marker::Map16 => self.number::<2>(what)?,
            _ => self.number::<4>(what)?,
        } as usize;
        if len * per_item > self.bytes.len() {
            return Err(MsgpackError::Length { what, claimed: len, left: self.bytes.len() });
        }
        Ok(len)
    }

    pub(crate) fn array(&mut self, what: &'static str) -> Result<usize> {
        self.length(Kind::Array, what, 1)
    }

    pub(crate) fn map(&mut self, what: &'static str) -> Result<usize> {
        self.length(Kind::Map, what, 2)
    }

    /// A list, item by item.
    pub(crate) fn list<T>(
        &mut self,
        what: &'static str,
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let len = self.array(what)?;
        let mut items = Vec::with_capacity(len);
        for _ in 0..len {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// A text or nil.
    pub(crate) fn optional_text(&mut self, what: &'static str) -> Result<Option<&'a str>> {
        if self.nil(what)? { Ok(None) } else { self.text(what).map(Some) }
    }

    /// Passes the next value over, whatever it is.
    pub(crate) fn skip(&mut self, what: &'static str) -> Result<()> {
        self.skip_at(what, 0)
    }

    fn skip_at(&mut self, what: &'static str, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(MsgpackError::Deep(MAX_DEPTH));
        }
        match self.kind(what)? {
            Kind::Nil | Kind::Bool => self.take(1, what).map(drop),
            Kind::Int => self.int(what).map(drop),
            Kind::Float => self.float(what).map(drop),
            Kind::Text => self.text(what).map(drop),
            Kind::Bytes => self.bytes(what).map(drop),
            Kind::Array => {
                let len = self.array(what)?;
                (0..len).try_for_each(|_| self.skip_at(what, depth + 1))
            }
            Kind::Map => {
                let len = self.map(what)?;
                (0..2 * len).try_for_each(|_| self.skip_at(what, depth + 1))
            }
            Kind::Other => {
                let marker = self.marker(what)?;
                self.take(1, what)?;
                let len = match marker {
                    Marker::FixExt1 => 1,
                    Marker::FixExt2 => 2,
                    Marker::FixExt4 => 4,
                    Marker::FixExt8 => 8,
                    Marker::FixExt16 => 16,
                    Marker::Ext8 => self.number::<1>(what)?,
                    Marker::Ext16 => self.number::<2>(what)?,
                    Marker::Ext32 => self.number::<4>(what)?,
                    _ => return Err(MsgpackError::Range { what }),
                };
                self.take(len as usize + 1, what).map(drop)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_every_width_and_sign() {
        for (bytes, value) in [
            (&[0x07][..], Int::Positive(7)),
            (&[0xff], Int::Negative(-1)),
            (&[0xcc, 200], Int::Positive(200)),
            (&[0xcd, 1, 0], Int::Positive(256)),
            (&[0xce, 0, 1, 0, 0], Int::Positive(65536)),
            (&[0xcf, 0xff, 0, 0, 0, 0, 0, 0, 0], Int::Positive(0xff << 56)),
            (&[0xd0, 0x80], Int::Negative(-128)),
            (&[0xd1, 0xff, 0xfe], Int::Negative(-2)),
            (&[0xd2, 0, 0, 0, 5], Int::Positive(5)),
            (&[0xd3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfd], Int::Negative(-3)),
        ] {
            let mut reader = Reader::new(bytes);
            assert_eq!((reader.int("x"), reader.is_empty()), (Ok(value), true), "{bytes:?}");
        }
        assert_eq!(Reader::new(&[0xcd, 1]).int("x"), Err(MsgpackError::Short { what: "x" }));
    }

    #[test]
    fn a_length_that_cannot_be_is_not_believed() {
        let claims = [0xdd, 0xff, 0xff, 0xff, 0xff, 1];
        let error = Reader::new(&claims).list("token_ids", |reader| reader.uint::<u32>("token")).unwrap_err();
        assert_eq!(error.to_string(), "token_ids claims 4294967295 items, but only 1 bytes are left");
        assert!(Reader::new(&[0x91; 100]).skip("x").is_err(), "nested without end");
        let kind = Reader::new(&[0xa1, b'x']).uint::<u32>("block_size").unwrap_err();
        assert_eq!(kind.to_string(), "block_size is a text, expected an integer");
    }
}
