//! One model's tokenizer.

use std::fmt;

use kvlane_indexer::TokenId;

/// Text to tokens and back, exactly as the model's `tokenizer.json` says.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    vocabulary: usize,
}

impl Tokenizer {
    pub(crate) fn from_json(bytes: &[u8]) -> Result<Self, String> {
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| error.to_string())?;
        // A file may ask for both; a prompt is never cut or padded in silence.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| error.to_string())?;
        // Ids may have gaps, so the highest counts, not how many there are.
        let vocabulary = inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
        Ok(Self { inner, vocabulary })
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
