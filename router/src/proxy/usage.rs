//! The few words of an answer that matter here.

use std::fmt;

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
