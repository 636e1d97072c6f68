//! The few words of an answer that matter here.

use std::fmt;

use bytes::{Buf, BytesMut};
use memchr::memmem;
use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct Usage {
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
struct Details {
    cached_tokens: Option<u64>,
}

impl Usage {
    /// None when the engine does not say.
    pub fn cached(&self) -> Option<u64> {
        self.prompt_tokens_details.as_ref().and_then(|details| details.cached_tokens)
    }

    /// With what an earlier one said where this one says nothing.
    pub(super) fn or(self, before: Option<Self>) -> Self {
        let before = before.unwrap_or_default();
        Self {
            prompt_tokens: self.prompt_tokens.or(before.prompt_tokens),
            completion_tokens: self.completion_tokens.or(before.completion_tokens),
            prompt_tokens_details: self.prompt_tokens_details.or(before.prompt_tokens_details),
        }
    }
}

/// Looks for the last usage in bytes that are too many to be kept.
///
/// Within a text a quote is escaped, so what is found is a field; of several the last one counts, as engines say it behind
/// what they generated.
#[derive(Debug, Default)]
pub struct Seeker {
    /// The end of what came, where a field may begin that is not all there yet.
    tail: BytesMut,
    pub(super) found: Option<Usage>,
}

const FIELD: &[u8] = b"\"usage\":";
/// No usage is longer.
const LONGEST: usize = 4 << 10;

impl Seeker {
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        // From here on it may go on in what comes next.
        let mut open = self.tail.len().saturating_sub(FIELD.len() - 1);
        for at in memmem::find_iter(&self.tail, FIELD) {
            let value = &self.tail[at + FIELD.len()..];
            let mut values = serde_json::Deserializer::from_slice(value).into_iter::<Option<Usage>>();
            match values.next() {
                Some(Ok(usage)) => self.found = usage.or(self.found.take()),
                Some(Err(error)) if error.is_eof() && value.len() < LONGEST => open = open.min(at),
                None => open = open.min(at),
                Some(Err(_)) => {}
            }
        }
        self.tail.advance(open);
    }
}

#[cfg(test)]
mod seeker_tests {
    use super::*;

    #[test]
    fn the_last_usage_is_found_however_it_is_cut() {
        let text = r#"{"choices":[{"message":{"content":"\"usage\":{\"completion_tokens\":1}"}}],
            "usage":{"prompt_tokens":7},"x":1,"usage":{"prompt_tokens":9,"completion_tokens":12},"usage":null,"y":[]}"#;
        for size in [1, 2, 3, 7, 64, text.len()] {
            let mut seeker = Seeker::default();
            text.as_bytes().chunks(size).for_each(|chunk| seeker.feed(chunk));
            let found = seeker.found.unwrap();
            assert_eq!((found.prompt_tokens, found.completion_tokens), (Some(9), Some(12)), "by {size}");
        }
        // What never ends is not kept.
        let mut seeker = Seeker::default();
        seeker.feed(b"{\"usage\":{\"a\":\"");
        for _ in 0..1000 {
            seeker.feed(&[b'x'; 1000]);
            assert!(seeker.tail.len() <= LONGEST + 1024, "{}", seeker.tail.len());
        }
        assert_eq!(seeker.found, None);
    }
}

/// Whether a field has something in it; what, does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Filled(pub(super) bool);

impl<'de> Deserialize<'de> for Filled {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct FilledVisitor;

        impl<'de> Visitor<'de> for FilledVisitor {
            type Value = Filled;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("anything")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Filled, E> {
                Ok(Filled(false))
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Filled, E> {
                Ok(Filled(value))
            }

            fn visit_i64<E: de::Error>(self, _: i64) -> Result<Filled, E> {
                Ok(Filled(true))
            }

            fn visit_u64<E: de::Error>(self, _: u64) -> Result<Filled, E> {
                Ok(Filled(true))
            }

            fn visit_f64<E: de::Error>(self, _: f64) -> Result<Filled, E> {
                Ok(Filled(true))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Filled, E> {
                Ok(Filled(!text.is_empty()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Filled, A::Error> {
                let mut any = false;
                while items.next_element::<IgnoredAny>()?.is_some() {
                    any = true;
                }
                Ok(Filled(any))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Filled, A::Error> {
                while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Filled(true))
            }
        }

        from.deserialize_any(FilledVisitor)
    }
}
