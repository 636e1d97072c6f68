//! The four forms a completion's prompt may take.

use std::fmt;

use kvlane_indexer::TokenId;
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<TokenId>),
    TokenLists(Vec<Vec<TokenId>>),
}

const EXPECTED: &str = "a text, a list of texts, a list of token ids, or a list of such lists";

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(PromptVisitor)
    }
}

struct PromptVisitor;

impl<'de> Visitor<'de> for PromptVisitor {
    type Value = Prompt;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Prompt, E> {
        Ok(Prompt::Text(text.to_owned()))
    }

    /// The first item decides what the rest must be.
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Prompt, A::Error> {
        match items.next_element::<Item>()? {
            None => Ok(Prompt::Tokens(Vec::new())),
            Some(Item::Text(first)) => rest(first, items).map(Prompt::Texts),
            Some(Item::Token(first)) => rest(first, items).map(Prompt::Tokens),
            Some(Item::Tokens(first)) => rest(first, items).map(Prompt::TokenLists),
        }
    }
}

fn rest<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(first: T, mut items: A) -> Result<Vec<T>, A::Error> {
    let mut all = vec![first];
    while let Some(item) = items.next_element()? {
        all.push(item);
    }
    Ok(all)
}

enum Item {
    Text(String),
    Token(TokenId),
    Tokens(Vec<TokenId>),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct ItemVisitor;

        impl<'de> Visitor<'de> for ItemVisitor {
            type Value = Item;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a token id, or a list of token ids")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Item, E> {
                Ok(Item::Text(text.to_owned()))
            }

            fn visit_u64<E: de::Error>(self, token: u64) -> Result<Item, E> {
                let id = TokenId::try_from(token);
                id.map(Item::Token)
                    .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(token), &"a token id"))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Item, A::Error> {
                let mut tokens = Vec::with_capacity(items.size_hint().unwrap_or(0).min(1 << 16));
                while let Some(token) = items.next_element()? {
                    tokens.push(token);
                }
                Ok(Item::Tokens(tokens))
            }
        }

        from.deserialize_any(ItemVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_a_text_or_tokens_or_several_of_either() {
        let read = |json: &str| serde_json::from_str::<Prompt>(json);
        assert_eq!(read("\"a\"").unwrap(), Prompt::Text("a".into()));
        assert_eq!(read("[\"a\", \"b\"]").unwrap(), Prompt::Texts(vec!["a".into(), "b".into()]));
        assert_eq!(read("[1, 2]").unwrap(), Prompt::Tokens(vec![1, 2]));
        assert_eq!(read("[[1], [2, 3]]").unwrap(), Prompt::TokenLists(vec![vec![1], vec![2, 3]]));
        assert_eq!(read("[]").unwrap(), Prompt::Tokens(vec![]));
        for wrong in ["1", "{}", "[1, \"a\"]", "[-1]", "[4294967296]", "[[1], 2]", "[null]"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
