//! Tokens of short words, for many threads at once and without a lock.
//!
//! A word has one place, by its hash; whoever comes later takes it. Places are written by one thread at a time and read by
//! any: a version that is odd while it is written, and another afterwards, tells a reader that what it read is not whole.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use kvlane_indexer::TokenId;
use xxhash_rust::xxh3::xxh3_64;

/// Words up to this many bytes are kept, whole, so that no word is ever taken for another.
const LONGEST: usize = 15;
/// Tokens of a word, at most, and bits of each.
const MOST_TOKENS: usize = 3;
const TOKEN_BITS: u32 = 20;

#[derive(Debug, Default)]
struct Place {
    version: AtomicU64,
    /// The word's bytes and, in the last, its length.
    word: [AtomicU64; 2],
    /// Its tokens, and how many they are in the uppermost bits.
    tokens: AtomicU64,
}

#[derive(Debug)]
pub(super) struct WordCache {
    places: Box<[Place]>,
}

/// A word as it is kept; none for a longer one, or for nothing.
fn packed(word: &str) -> Option<[u64; 2]> {
    let mut bytes = [0; LONGEST + 1];
    bytes
        .get_mut(..word.len())
        .filter(|_| (1..=LONGEST).contains(&word.len()))?
        .copy_from_slice(word.as_bytes());
    bytes[LONGEST] = word.len() as u8;
    let half = |from: usize| u64::from_le_bytes(std::array::from_fn(|n| bytes[from + n]));
    Some([half(0), half(8)])
}

impl WordCache {
    /// Room for about so many words.
    pub(super) fn new(words: usize) -> Self {
        Self { places: (0..words.max(1).next_power_of_two()).map(|_| Place::default()).collect() }
    }

    fn place(&self, word: &str) -> &Place {
        &self.places[xxh3_64(word.as_bytes()) as usize & (self.places.len() - 1)]
    }

    /// Appends a word's tokens, if they are known.
    pub(super) fn append(&self, word: &str, tokens: &mut Vec<TokenId>) -> bool {
        let Some(wanted) = packed(word) else { return false };
        let place = self.place(word);
        let before = place.version.load(Ordering::Acquire);
        let found = [place.word[0].load(Ordering::Relaxed), place.word[1].load(Ordering::Relaxed)];
        let kept = place.tokens.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        if found != wanted || before % 2 == 1 || place.version.load(Ordering::Relaxed) != before {
            return false;
        }
        let count = kept >> (MOST_TOKENS as u32 * TOKEN_BITS);
        tokens.extend(
            (0..count as u32).map(|n| (kept >> (n * TOKEN_BITS)) as TokenId & ((1 << TOKEN_BITS) - 1)),
        );
        true
    }

    /// Keeps a word's tokens in place of whatever was there; not if somebody else is at it.
    pub(super) fn keep(&self, word: &str, tokens: &[TokenId]) {
        if tokens.is_empty()
            || tokens.len() > MOST_TOKENS
            || tokens.iter().any(|token| token >> TOKEN_BITS != 0)
        {
            return;
        }
        let Some(halves) = packed(word) else { return };
        let place = self.place(word);
        let version = place.version.load(Ordering::Relaxed);
        let writing = version.wrapping_add(1);
        if version % 2 == 1
            || place.version.compare_exchange(version, writing, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return;
        }
        // What is written below is not seen before the odd version is.
        fence(Ordering::Release);
        let count = (tokens.len() as u64) << (MOST_TOKENS as u32 * TOKEN_BITS);
        let kept = tokens.iter().rev().fold(0, |kept, token| kept << TOKEN_BITS | u64::from(*token));
        place.word[0].store(halves[0], Ordering::Relaxed);
        place.word[1].store(halves[1], Ordering::Relaxed);
        place.tokens.store(count | kept, Ordering::Relaxed);
        place.version.store(writing.wrapping_add(1), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(cache: &WordCache, word: &str) -> Option<Vec<TokenId>> {
        let mut tokens = Vec::new();
        cache.append(word, &mut tokens).then_some(tokens)
    }

    #[test]
    fn words_are_found_until_another_takes_their_place() {
        let cache = WordCache::new(64);
        assert_eq!(found(&cache, ""), None);
        for (word, tokens) in
            [(" the", vec![262]), ("fifteen letters", vec![1, (1 << 20) - 1, 3]), ("a\0", vec![7, 0])]
        {
            cache.keep(word, &tokens);
            assert_eq!(found(&cache, word), Some(tokens), "{word:?}");
        }
        assert_eq!(found(&cache, "a"), None);
        cache.keep("sixteen letters.", &[1]);
        cache.keep("many", &[1, 2, 3, 4]);
        cache.keep("large", &[1 << 20]);
        for word in ["sixteen letters.", "many", "large"] {
            assert_eq!(found(&cache, word), None, "{word}");
        }
        let small = WordCache::new(1);
        small.keep("a", &[1]);
        small.keep("b", &[2]);
        assert_eq!((found(&small, "a"), found(&small, "b")), (None, Some(vec![2])));
    }

    /// Whatever readers and writers do at one place, what is read was written for that word.
    #[test]
    fn nothing_is_read_by_halves() {
        let cache = WordCache::new(1);
        let word = |n: u32| format!("word {n}");
        std::thread::scope(|scope| {
            for first in 0..4 {
                let (cache, word) = (&cache, &word);
                scope.spawn(move || {
                    for n in (first..40_000).step_by(4) {
                        cache.keep(&word(n % 16), &[n % 16, n % 16 + 1]);
                        for asked in 0..16 {
                            if let Some(tokens) = found(cache, &word(asked)) {
                                assert_eq!(tokens, [asked, asked + 1]);
                            }
                        }
                    }
                });
            }
        });
    }
}
