//! One model's tokenizer.

use std::collections::HashSet;
use std::fmt;

use aho_corasick::{AhoCorasick, MatchKind};
use kvlane_indexer::TokenId;
use serde_json::Value;
use tokenizers::Model as _;
use unicode_normalization::is_nfc;

use super::word_cache::WordCache;
use super::words::WordRules;

/// Text to tokens and back, exactly as the model's `tokenizer.json` says.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    vocabulary: usize,
    seams: Option<Seams>,
    /// Set where words are all that tokens depend on.
    by_word: Option<ByWord>,
}

/// Where a text falls apart by itself: before special tokens, which are found before anything else is looked at.
struct Seams {
    /// Every special token that is sought in the text as it came, as the tokenizer seeks them.
    tokens: AhoCorasick,
    ids: Vec<TokenId>,
    /// Whether one takes nothing from the text on its left.
    clean: Vec<bool>,
    /// Whether that goes for all of them and for both sides, and there are no others.
    all_clean: bool,
}

impl Seams {
    fn of(tokenizer: &tokenizers::Tokenizer) -> Option<Self> {
        let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        let sought: Vec<_> =
            added.iter().filter(|(_, token)| !token.normalized && !token.content.is_empty()).collect();
        // Whether one of those counts depends on its neighbours.
        if sought.is_empty() || sought.iter().any(|(_, token)| token.single_word) {
            return None;
        }
        let contents = sought.iter().map(|(_, token)| token.content.as_str());
        let tokens = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(contents).ok()?;
        let strips = sought.iter().any(|(_, token)| token.lstrip || token.rstrip);
        Some(Self {
            tokens,
            ids: sought.iter().map(|(id, _)| **id).collect(),
            clean: sought.iter().map(|(_, token)| !token.lstrip).collect(),
            all_clean: !strips && sought.len() == added.len(),
        })
    }
}

/// Tokens word by word, each word's known after the first time.
struct ByWord {
    rules: WordRules,
    cache: WordCache,
    /// How the model's vocabulary writes each byte.
    alphabet: [char; 256],
    /// Texts are brought into Unicode's composed form first.
    composes: bool,
    /// What stands before and behind a text that is marked.
    marks: (Vec<TokenId>, Vec<TokenId>),
}

/// Words that are kept, about. A table of them takes 32 bytes each.
const WORDS_KEPT: usize = 1 << 16;

impl ByWord {
    fn of(inner: &tokenizers::Tokenizer, file: &Value) -> Option<Self> {
        let model = &file["model"];
        let plain = |name: &str| model[name].is_null() || model[name] == "" || model[name] == false;
        // Whatever else there may be is not looked into, but left to the tokenizer.
        let bpe = model["type"] == "BPE" && (plain("dropout") || model["dropout"] == 0.0);
        let whole = ["continuing_subword_prefix", "end_of_word_suffix", "unk_token", "byte_fallback"];
        let composes = match &file["normalizer"] {
            Value::Null => false,
            normalizer if normalizer["type"] == "NFC" => true,
            _ => return None,
        };
        if !bpe || !whole.into_iter().all(plain) {
            return None;
        }
        // One written down twice means whatever the tokenizer makes of it.
        let added = file["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
        for field in ["content", "id"] {
            let distinct: HashSet<String> = added.iter().map(|token| token[field].to_string()).collect();
            if distinct.len() < added.len() {
                return None;
            }
        }
        let rules = WordRules::of(&file["pre_tokenizer"])?;
        let ids = |text: &str, mark| Some(inner.encode_fast(text, mark).ok()?.get_ids().to_vec());
        let (bare, marked) = (ids(SAMPLE, false)?, ids(SAMPLE, true)?);
        let at = (0..=marked.len().checked_sub(bare.len())?).find(|at| marked[*at..].starts_with(&bare))?;
        let marks = (marked[..at].to_vec(), marked[at + bare.len()..].to_vec());
        Some(Self { rules, cache: WordCache::new(WORDS_KEPT), alphabet: alphabet(), composes, marks })
    }

    fn append(
        &self,
        model: &tokenizers::ModelWrapper,
        word: &str,
        tokens: &mut Vec<TokenId>,
    ) -> Result<(), TokenizeError> {
        if self.cache.append(word, tokens) {
            return Ok(());
        }
        let spelt: String = word.bytes().map(|byte| self.alphabet[usize::from(byte)]).collect();
        let from = tokens.len();
        let made = model.tokenize(&spelt).map_err(|error| TokenizeError(error.to_string()))?;
        tokens.extend(made.iter().map(|token| token.id));
        self.cache.keep(word, &tokens[from..]);
        Ok(())
    }
}

/// Letters, marks and digits stand for themselves, other bytes for characters behind the first 256: every byte is one
/// that can be seen.
fn alphabet() -> [char; 256] {
    let mut behind = 256..;
    std::array::from_fn(|byte| {
        let seen = matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let code = if seen { Some(byte as u32) } else { behind.next() };
        code.and_then(char::from_u32).unwrap_or_default()
    })
}

/// Something of everything that words are made of. A tokenizer that reads this as it should is trusted to read the rest.
const SAMPLE: &str = "It's  what THEY'LL say:\tcaf\u{e9} \u{4f60}\u{597d}, 1234567 (x\u{b2})!\r\n\n   end\u{a0}\u{3000}. 'tis\u{1f600}\n ";

impl Tokenizer {
    pub(crate) fn from_json(bytes: &[u8]) -> Result<Self, String> {
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| error.to_string())?;
        // A file may ask for both; a prompt is never cut or padded in silence.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| error.to_string())?;
        // Ids may have gaps, so the highest counts, not how many there are.
        let vocabulary = inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
        let seams = Seams::of(&inner);
        let file: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let added = inner.get_added_vocabulary().get_added_tokens_decoder();
        let clean = seams.as_ref().map_or(added.is_empty(), |seams| seams.all_clean);
        let by_word = ByWord::of(&inner, &file).filter(|_| clean);
        let mut tokenizer = Self { inner, vocabulary, seams, by_word };
        for mark in [false, true] {
            if tokenizer.encode(SAMPLE, mark).ok() != tokenizer.encode_slowly(SAMPLE, mark).ok() {
                tracing::warn!(
                    "a tokenizer cuts words in a way that is not understood; it is used as it comes, slowly"
                );
                tokenizer.by_word = None;
            }
        }
        Ok(tokenizer)
    }

    /// Pieces of a text whose tokens, one after another, are the text's own. Each but the first begins with a special
    /// token; so the same piece has the same tokens wherever it stands, unless it stands first.
    pub fn pieces<'t>(&'t self, text: &'t str) -> impl Iterator<Item = &'t str> + 't {
        let seams = self.seams.as_ref();
        let cuts = seams.into_iter().flat_map(move |seams| {
            let found = seams.tokens.find_iter(text);
            found.filter(|found| seams.clean[found.pattern()]).map(|found| found.start())
        });
        let mut from = 0;
        let ends = cuts.filter(|at| *at > 0).chain(std::iter::once(text.len()));
        ends.map(move |at| &text[std::mem::replace(&mut from, at)..at])
    }

    /// Tokens of a text. `mark` adds what the model wants around a bare text, such as a begin-of-text token;
    /// a rendered chat has it already.
    pub fn encode(&self, text: &str, mark: bool) -> Result<Vec<TokenId>, TokenizeError> {
        match &self.by_word {
            Some(by_word) if !by_word.composes || is_nfc(text) => {
                let mut tokens = Vec::with_capacity(text.len() / 3 + 2);
                tokens.extend(by_word.marks.0.iter().filter(|_| mark));
                self.append(by_word, text, &mut tokens)?;
                tokens.extend(by_word.marks.1.iter().filter(|_| mark));
                Ok(tokens)
            }
            _ => self.encode_slowly(text, mark),
        }
    }

    /// Tokens word by word, and special ones as they come between.
    fn append(&self, by_word: &ByWord, text: &str, tokens: &mut Vec<TokenId>) -> Result<(), TokenizeError> {
        let model = self.inner.get_model();
        let words = |text: &str, tokens: &mut Vec<TokenId>| {
            by_word.rules.words(text).try_for_each(|word| by_word.append(model, word, tokens))
        };
        let mut from = 0;
        if let Some(seams) = &self.seams {
            for found in seams.tokens.find_iter(text) {
                words(&text[from..found.start()], tokens)?;
                tokens.push(seams.ids[found.pattern()]);
                from = found.end();
            }
        }
        words(&text[from..], tokens)
    }

    /// Nothing but the tokenizer itself.
    #[cfg(fuzzing)]
    pub fn encode_whole(&self, text: &str, mark: bool) -> Result<Vec<TokenId>, TokenizeError> {
        self.encode_slowly(text, mark)
    }

    /// The same by the tokenizer's own means.
    fn encode_slowly(&self, text: &str, mark: bool) -> Result<Vec<TokenId>, TokenizeError> {
        let encoding =
            self.inner.encode_fast(text, mark).map_err(|error| TokenizeError(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Whether words are known by themselves, so that tokens cost next to nothing.
    pub fn is_quick(&self) -> bool {
        self.by_word.is_some()
    }

    /// The text of tokens, special ones left out.
    pub fn decode(&self, tokens: &[TokenId]) -> Result<String, TokenizeError> {
        self.inner.decode(tokens, true).map_err(|error| TokenizeError(error.to_string()))
    }

    /// A token as the vocabulary writes it.
    pub fn token(&self, id: TokenId) -> Option<String> {
        self.inner.id_to_token(id)
    }

    pub fn id(&self, token: &str) -> Option<TokenId> {
        self.inner.token_to_id(token)
    }

    /// All ids are below it, added tokens' included.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocabulary", &self.vocabulary)
            .field("by_word", &self.by_word.is_some())
            .finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("text cannot be tokenized: {0}")]
pub struct TokenizeError(String);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// The built-in tokenizer with another way of cutting words, or of composing characters.
    fn with(pre_tokenizer: Option<Value>, normalizer: Value) -> Tokenizer {
        let text = include_str!("../../models/kvlane-small/tokenizer.json");
        let mut file: Value = serde_json::from_str(text).unwrap();
        pre_tokenizer.into_iter().for_each(|value| file["pre_tokenizer"] = value);
        file["normalizer"] = normalizer;
        Tokenizer::from_json(file.to_string().as_bytes()).unwrap()
    }

    /// One of each pattern that is known.
    fn known() -> [Tokenizer; 4] {
        let text = include_str!("../../models/kvlane-small/tokenizer.json");
        let file: Value = serde_json::from_str(text).unwrap();
        let mut one_digit = file["pre_tokenizer"].clone();
        let pattern =
            one_digit["pretokenizers"][0]["pattern"]["Regex"].as_str().unwrap().replace("{1,3}", "");
        one_digit["pretokenizers"][0]["pattern"]["Regex"] = pattern.into();
        let bytes =
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        let nfc = json!({"type": "NFC"});
        [
            with(None, Value::Null),
            with(Some(one_digit), nfc.clone()),
            with(Some(bytes.clone()), Value::Null),
            with(Some(bytes), nfc),
        ]
    }

    #[test]
    fn patterns_that_are_not_known_are_left_alone() {
        assert!(known().iter().all(|tokenizer| tokenizer.by_word.is_some()));
        let spaces =
            json!({"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": false});
        for (pre_tokenizer, normalizer) in [
            (Some(spaces.clone()), Value::Null),
            (Some(json!({"type": "Sequence", "pretokenizers": [spaces]})), Value::Null),
            (Some(json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true})), Value::Null),
            (None, json!({"type": "NFKC"})),
        ] {
            let tokenizer = with(pre_tokenizer, normalizer);
            assert!(tokenizer.by_word.is_none());
            assert_eq!(
                tokenizer.encode("a b", false).unwrap(),
                tokenizer.encode_slowly("a b", false).unwrap()
            );
        }
    }

    /// What words are made of, so that neighbours of every kind meet.
    fn part() -> impl Strategy<Value = String> {
        let fixed = [
            "'",
            "'s",
            "'S",
            "'\u{17f}",
            "'ll",
            "'LL",
            "'Re",
            "'d",
            "s",
            " ",
            "  ",
            "\t",
            "\n",
            "\r\n",
            "\r",
            "\u{a0}",
            "\u{3000}",
            "\u{85}",
            "\u{200b}",
            "\u{feff}",
            "1",
            "12",
            "2024",
            "\u{b2}",
            "\u{661}",
            "\u{2167}",
            "word",
            "Word",
            "caf\u{e9}",
            "e\u{301}",
            "\u{4f60}",
            "\u{1f600}",
            "\u{1d400}",
            "\u{10ffff}",
            "\u{e000}",
            "!",
            "...",
            "(",
            "<|",
            "|>",
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "\u{0}",
            "/",
            "_",
            "\u{1c5}",
            "\u{2b0}",
            "\u{300}",
        ];
        prop_oneof![
            6 => prop::sample::select(fixed.to_vec()).prop_map(str::to_owned),
            1 => any::<char>().prop_map(String::from),
            1 => "[a-z]{1,20}",
        ]
    }

    proptest! {
        /// Word by word gives what the tokenizer itself gives.
        #[test]
        fn tokens_are_the_tokenizers_own(parts in prop::collection::vec(part(), 0..24), mark: bool) {
            static KNOWN: std::sync::LazyLock<[Tokenizer; 4]> = std::sync::LazyLock::new(known);
            let text = parts.concat();
            for tokenizer in KNOWN.iter() {
                // Twice: the second time words are known.
                for _ in 0..2 {
                    prop_assert_eq!(
                        tokenizer.encode(&text, mark).unwrap(),
                        tokenizer.encode_slowly(&text, mark).unwrap()
                    );
                }
            }
        }
    }
}
