//! One model's tokenizer.

use std::fmt;

use aho_corasick::{AhoCorasick, MatchKind};
use kvlane_indexer::TokenId;

/// Text to tokens and back, exactly as the model's `tokenizer.json` says.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    vocabulary: usize,
    seams: Option<Seams>,
}

/// Where a text falls apart by itself: before special tokens, which are found before anything else is looked at.
struct Seams {
    /// Every special token that is sought in the text as it came, as the tokenizer seeks them.
    tokens: AhoCorasick,
    /// Whether one takes nothing from the text on its left.
    clean: Vec<bool>,
}

impl Seams {
    fn of(tokenizer: &tokenizers::Tokenizer) -> Option<Self> {
        let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        let sought: Vec<_> =
            added.values().filter(|token| !token.normalized && !token.content.is_empty()).collect();
        // Whether one of those counts depends on its neighbours.
        if sought.is_empty() || sought.iter().any(|token| token.single_word) {
            return None;
        }
        let contents = sought.iter().map(|token| token.content.as_str());
        let tokens = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(contents).ok()?;
        Some(Self { tokens, clean: sought.iter().map(|token| !token.lstrip).collect() })
    }
}

impl Tokenizer {
    pub(crate) fn from_json(bytes: &[u8]) -> Result<Self, String> {
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| error.to_string())?;
        // A file may ask for both; a prompt is never cut or padded in silence.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| error.to_string())?;
        // Ids may have gaps, so the highest counts, not how many there are.
        let vocabulary = inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
        let seams = Seams::of(&inner);
        Ok(Self { inner, vocabulary, seams })
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
        let encoding =
            self.inner.encode_fast(text, mark).map_err(|error| TokenizeError(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
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
        f.debug_struct("Tokenizer").field("vocabulary", &self.vocabulary).finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("text cannot be tokenized: {0}")]
pub struct TokenizeError(String);
