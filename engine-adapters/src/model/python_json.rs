//! JSON as Python's `json.dumps` spells it, which is what chat templates were written against.

use std::io;

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{CharEscape, Formatter, Serializer};

/// Nobody indents by more.
pub(super) const MOST_INDENT: usize = 64;
const SPACES: [u8; MOST_INDENT] = [b' '; MOST_INDENT];

/// The keyword arguments of `json.dumps` that templates use.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonStyle {
    /// On one line without, as a tree with.
    pub(super) indent: Option<usize>,
    /// Between items, and between a key and its value.
    pub(super) separators: Option<Vec<String>>,
    pub(super) sort_keys: bool,
    pub(super) ensure_ascii: bool,
}

impl JsonStyle {
    pub(super) fn write(&self, value: &impl Serialize) -> Result<String, serde_json::Error> {
        let mut value = serde_json::to_value(value)?;
        if self.sort_keys {
            sort(&mut value);
        }
        // Python's own: no space after a comma at the end of a line.
        let mut separators = [if self.indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned);
        for (ours, given) in separators.iter_mut().zip(self.separators.iter().flatten()) {
            ours.clone_from(given);
        }
        let mut text = Vec::new();
        let form = Python { style: self, separators, depth: 0, empty: true };
        value.serialize(&mut Serializer::with_formatter(&mut text, form))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

fn sort(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(sort),
        Value::Object(fields) => {
            fields.sort_keys();
            fields.values_mut().for_each(sort);
        }
        _ => {}
    }
}

struct Python<'a> {
    style: &'a JsonStyle,
    separators: [String; 2],
    depth: usize,
    empty: bool,
}

impl Python<'_> {
    fn open<W: ?Sized + io::Write>(&mut self, to: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.empty = true;
        to.write_all(bracket)
    }

    fn close<W: ?Sized + io::Write>(&mut self, to: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !std::mem::replace(&mut self.empty, false) {
            self.line(to)?;
        }
        to.write_all(bracket)
    }

    fn item<W: ?Sized + io::Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.empty = false;
        if !first {
            to.write_all(self.separators[0].as_bytes())?;
        }
        self.line(to)
    }

    fn line<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        match self.style.indent {
            None => Ok(()),
            Some(indent) => {
                to.write_all(b"\n")?;
                (0..self.depth).try_for_each(|_| to.write_all(&SPACES[..indent.min(MOST_INDENT)]))
            }
        }
    }
}

impl Formatter for Python<'_> {
    fn begin_array<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.open(to, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.close(to, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.item(to, first)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.empty = false;
        Ok(())
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.open(to, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.close(to, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.item(to, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(self.separators[1].as_bytes())
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.empty = false;
        Ok(())
    }

    /// As Python's `repr`: two digits at least in an exponent, and a sign.
    fn write_f64<W: ?Sized + io::Write>(&mut self, to: &mut W, value: f64) -> io::Result<()> {
        let size = value.abs();
        if value != 0.0 && !(1e-4..1e16).contains(&size) {
            let text = format!("{value:e}");
            let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let (sign, exponent) =
                exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
            return write!(to, "{digits}e{sign}{exponent:0>2}");
        }
        write!(to, "{value:?}")
    }

    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, to: &mut W, text: &str) -> io::Result<()> {
        if !self.style.ensure_ascii {
            return to.write_all(text.as_bytes());
        }
        for c in text.chars() {
            if c.is_ascii() {
                write!(to, "{c}")?;
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(to, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }

    fn write_char_escape<W: ?Sized + io::Write>(&mut self, to: &mut W, escape: CharEscape) -> io::Result<()> {
        match escape {
            // serde_json writes these in capitals.
            CharEscape::AsciiControl(byte) => write!(to, "\\u{byte:04x}"),
            CharEscape::Quote => to.write_all(b"\\\""),
            CharEscape::ReverseSolidus => to.write_all(b"\\\\"),
            CharEscape::Solidus => to.write_all(b"/"),
            CharEscape::Backspace => to.write_all(b"\\b"),
            CharEscape::FormFeed => to.write_all(b"\\f"),
            CharEscape::LineFeed => to.write_all(b"\\n"),
            CharEscape::CarriageReturn => to.write_all(b"\\r"),
            CharEscape::Tab => to.write_all(b"\\t"),
        }
    }
}
