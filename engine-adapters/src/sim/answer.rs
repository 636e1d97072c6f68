//! What a simulated model says: made-up sentences whose every word is one token.
//!
//! An answer must survive the round trip. Sent back as history, rendered and tokenized again, it has to give
//! exactly the tokens that were generated, or the next turn misses the cache for no visible reason. So a model's
//! words are checked against its tokenizer, and whole answers against its chat template, before it serves.

use kvlane_indexer::TokenId;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use crate::model::{ChatPrompt, Model, TokenizeError};

/// One token of an answer and the text it adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub token: TokenId,
    pub text: String,
}

/// The parts of speech in `words.txt`, in the order sentences use them.
const SENTENCE: [&str; 8] =
    ["start", "adjective", "noun", "verb", "determiner", "noun", "preposition", "noun"];

/// The words one model can say.
#[derive(Debug)]
pub struct Lexicon {
    /// By part of speech.
    words: Vec<(&'static str, Vec<Piece>)>,
    /// Opens an answer: no space before it.
    openings: Vec<Piece>,
    stop: Piece,
    end: Option<TokenId>,
}

#[derive(Debug, thiserror::Error)]
pub enum LexiconError {
    #[error(
        "model `{model}`: its tokenizer has no single token for enough words (no `{part}`), so simulated answers cannot be made for it"
    )]
    TooFewWords { model: String, part: &'static str },
    #[error(
        "model `{model}`: a simulated answer sent back as history is tokenized differently, so follow-up turns would miss the cache; {what}"
    )]
    NoRoundTrip { model: String, what: &'static str },
    #[error("model `{model}`: {error}")]
    Tokenize { model: String, error: TokenizeError },
}

impl Lexicon {
    /// The words of `model`, checked.
    pub fn new(model: &Model) -> Result<Self, LexiconError> {
        let tokenizer = &model.tokenizer;
        let failed = |error| LexiconError::Tokenize { model: model.name.clone(), error };
        // A text's tokens, when they are as many as expected and give the text back.
        let exact = |text: &str, count: usize| -> Result<Option<Vec<TokenId>>, LexiconError> {
            let tokens = tokenizer.encode(text, false).map_err(failed)?;
            let same = tokens.len() == count && tokenizer.decode(&tokens).map_err(failed)? == text;
            Ok(same.then_some(tokens))
        };
        let mut openings = Vec::new();
        let mut words: Vec<(&'static str, Vec<Piece>)> = Vec::new();
        for line in include_str!("words.txt").lines() {
            let mut line = line.split_whitespace();
            let Some(part) = line.next() else { continue };
            let mut pieces = Vec::new();
            for word in line {
                if part == "start"
                    && let Some(tokens) = exact(word, 1)?
                {
                    openings.push(Piece { token: tokens[0], text: word.to_owned() });
                }
                // Between two others, as it will stand: neighbours must not change it.
                if let Some(opening) = openings.first()
                    && let Some(tokens) = exact(&format!("{} {word} {word}.", opening.text), 4)?
                    && tokens[0] == opening.token
                    && tokens[1] == tokens[2]
                {
                    pieces.push(Piece { token: tokens[1], text: format!(" {word}") });
                }
            }
            words.push((part, pieces));
        }
        let few = |part| LexiconError::TooFewWords { model: model.name.clone(), part };
        let opening = openings.first().ok_or_else(|| few("start"))?;
        let stop = exact(&format!("{}.", opening.text), 2)?.ok_or_else(|| few("."))?;
        for part in SENTENCE {
            if words.iter().all(|(name, pieces)| *name != part || pieces.is_empty()) {
                return Err(few(part));
            }
        }
        let stop = Piece { token: stop[1], text: ".".to_owned() };
        let lexicon = Self { words, openings, stop, end: model.end_tokens.first().copied() };
        lexicon.check(model).map(|()| lexicon)
    }

    /// `count` tokens of an answer, the same for the same seed.
    pub fn answer(&self, seed: u64, count: usize) -> Vec<Piece> {
        let mut random = StdRng::seed_from_u64(seed);
        let mut answer = Vec::with_capacity(count);
        while answer.len() < count {
            self.sentence(&mut random, &mut answer);
        }
        answer.truncate(count);
        answer
    }

    /// Whether an answer can begin with this token.
    pub fn opens(&self, token: TokenId) -> bool {
        self.openings.iter().any(|piece| piece.token == token)
    }

    /// Whether it is one of the words.
    pub fn has(&self, token: TokenId) -> bool {
        self.opens(token)
            || self.stop.token == token
            || self.words.iter().any(|(_, pieces)| pieces.iter().any(|piece| piece.token == token))
    }

    /// The token that ends an answer, which has no text.
    pub fn end(&self) -> Option<TokenId> {
        self.end
    }

    fn sentence(&self, random: &mut StdRng, answer: &mut Vec<Piece>) {
        let opens = answer.is_empty();
        for (at, part) in SENTENCE.iter().enumerate() {
            // Some sentences do without the adjective, some end early.
            if at == 1 && random.random_bool(0.4) || at == 6 && random.random_bool(0.5) {
                if at == 6 {
                    break;
                }
                continue;
            }
            let words = if opens && at == 0 { &self.openings } else { self.part(part) };
            answer.extend(words.choose(random).cloned());
        }
        answer.push(self.stop.clone());
    }

    fn part(&self, part: &str) -> &[Piece] {
        self.words.iter().find(|(name, _)| *name == part).map_or(&[], |(_, words)| words)
    }

    /// Whether answers come back as they went, bare and through the chat template.
    fn check(&self, model: &Model) -> Result<(), LexiconError> {
        let broken = |what| LexiconError::NoRoundTrip { model: model.name.clone(), what };
        let failed = |error| LexiconError::Tokenize { model: model.name.clone(), error };
        for seed in 0..8 {
            let answer = self.answer(seed, 40 + 7 * seed as usize);
            let tokens: Vec<TokenId> = answer.iter().map(|piece| piece.token).collect();
            let text: String = answer.iter().map(|piece| piece.text.as_str()).collect();
            if model.tokenizer.encode(&text, false).map_err(failed)? != tokens {
                return Err(broken("its tokenizer joins words"));
            }
            let Some(template) = &model.template else { continue };
            let message = |role: &str, content: &str| match json!({"role": role, "content": content}) {
                serde_json::Value::Object(message) => message,
                _ => serde_json::Map::new(),
            };
            let turns =
                [message("user", "Where?"), message("assistant", &text), message("user", "And then?")];
            let render = |turns: &[_]| template.render(&ChatPrompt::new(turns, 0));
            let (Ok(first), Ok(second)) = (render(&turns[..1]), render(&turns)) else {
                return Err(broken("its chat template cannot be rendered"));
            };
            let mut expected = model.tokenizer.encode(&first, false).map_err(failed)?;
            expected.extend(&tokens);
            if !model.tokenizer.encode(&second, false).map_err(failed)?.starts_with(&expected) {
                return Err(broken("its chat template changes history"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_the_length_asked_for_and_read_as_sentences() {
        let model = Model::embedded().unwrap();
        let lexicon = Lexicon::new(&model).unwrap();
        for (part, pieces) in &lexicon.words {
            assert!(pieces.len() >= 8, "{part}: {pieces:?}");
        }
        for count in [1, 2, 9, 100, 1000] {
            assert_eq!(lexicon.answer(3, count).len(), count);
        }
        assert_eq!(lexicon.answer(3, 50), lexicon.answer(3, 50));
        assert_ne!(lexicon.answer(3, 50), lexicon.answer(4, 50));
        let text: String = lexicon.answer(1, 12).into_iter().map(|piece| piece.text).collect();
        assert!(text.starts_with(char::is_uppercase) && text.contains('.'), "{text}");
    }

    #[test]
    fn a_template_that_rewrites_history_is_noticed() {
        let mut model = Model::embedded().unwrap();
        let source = "{% for m in messages %}{{ m.content | upper }}\n{% endfor %}";
        model.template =
            Some(crate::model::ChatTemplate::new(&source.into(), std::collections::BTreeMap::new()).unwrap());
        let error = Lexicon::new(&model).unwrap_err().to_string();
        assert!(error.ends_with("its chat template changes history"), "{error}");
    }
}
