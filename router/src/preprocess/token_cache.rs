//! Tokens of pieces of text seen before, so that turn N of a chat pays only for what is new.
//!
//! A rendered chat falls apart before special tokens, and each piece's tokens depend on nothing else. Pieces are known
//! by a 128-bit hash of their text; the least useful go when the bytes are used up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvlane_engine_adapters::model::Tokenizer;
use kvlane_indexer::TokenId;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use xxhash_rust::xxh3::xxh3_128_with_seed;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCacheStats {
    pub hits: u64,
    pub misses: u64,
    pub cached_tokens: u64,
    pub uncached_tokens: u64,
    pub bytes: u64,
    pub capacity_bytes: u64,
}

#[derive(Debug)]
pub struct TokenCache {
    pieces: Cache<u128, Arc<[TokenId]>, Bytes>,
    hits: AtomicU64,
    misses: AtomicU64,
    cached_tokens: AtomicU64,
    uncached_tokens: AtomicU64,
}

#[derive(Clone, Debug)]
struct Bytes;

/// What an entry takes besides its tokens: key, pointers, place in the table.
const ENTRY: usize = 96;

impl Weighter<u128, Arc<[TokenId]>> for Bytes {
    fn weight(&self, _: &u128, tokens: &Arc<[TokenId]>) -> u64 {
        (ENTRY + size_of_val::<[TokenId]>(tokens)) as u64
    }
}

/// A piece has some hundred tokens, more or less.
const TYPICAL_PIECE: usize = 400;

impl TokenCache {
    pub fn new(bytes: usize) -> Self {
        let items = (bytes / (ENTRY + TYPICAL_PIECE)).max(1);
        Self {
            pieces: Cache::with_weighter(items, bytes as u64, Bytes),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            cached_tokens: AtomicU64::new(0),
            uncached_tokens: AtomicU64::new(0),
        }
    }

    /// Tokens of a text by the tokenizer of model `id`. Marked texts are whole pieces: what is put around a text
    /// belongs to no part of it.
    pub fn encode(&self, tokenizer: &Tokenizer, id: u64, text: &str, mark: bool) -> Vec<TokenId> {
        let mut tokens = Vec::with_capacity(text.len() / 3);
        if mark {
            self.append(tokenizer, id << 2 | 1, text, true, &mut tokens);
            return tokens;
        }
        for (n, piece) in tokenizer.pieces(text).enumerate() {
            // The first piece of a text may be read differently from the same piece further on.
            self.append(tokenizer, id << 2 | if n == 0 { 2 } else { 0 }, piece, false, &mut tokens);
        }
        tokens
    }

    fn append(&self, tokenizer: &Tokenizer, seed: u64, piece: &str, mark: bool, tokens: &mut Vec<TokenId>) {
        let key = xxh3_128_with_seed(piece.as_bytes(), seed);
        if let Some(known) = self.pieces.get(&key) {
            self.hits.fetch_add(1, Ordering::Relaxed);
            self.cached_tokens.fetch_add(known.len() as u64, Ordering::Relaxed);
            tokens.extend_from_slice(&known);
            return;
        }
        // A text that cannot be tokenized has no tokens to be found by; the engine will say what is wrong with it.
        let made: Arc<[TokenId]> = tokenizer.encode(piece, mark).unwrap_or_default().into();
        self.misses.fetch_add(1, Ordering::Relaxed);
        self.uncached_tokens.fetch_add(made.len() as u64, Ordering::Relaxed);
        tokens.extend_from_slice(&made);
        self.pieces.insert(key, made);
    }

    pub fn stats(&self) -> TokenCacheStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TokenCacheStats {
            hits: read(&self.hits),
            misses: read(&self.misses),
            cached_tokens: read(&self.cached_tokens),
            uncached_tokens: read(&self.uncached_tokens),
            bytes: self.pieces.weight(),
            capacity_bytes: self.pieces.capacity(),
        }
    }
}
