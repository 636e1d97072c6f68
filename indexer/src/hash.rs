//! Tokens into block hashes, block hashes into sequence hashes.
//!
//! The arithmetic is Dynamo's, so that its publishers and ours name the same block alike: XXH3-64 over the
//! block's token ids as little-endian `u32`, seeded with 1337 plus what the adapter name and the cache salt
//! hash to; then a chain of XXH3-64 over (previous sequence hash, block hash), seeded with 1337 alone.
//!
//! Nothing is allocated per block, and a prompt that grew is hashed from where it was left off.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::block::{BlockHash, BlockSize, SequenceHash, TokenId};

const CHAIN_SEED: u64 = 1337;
const LORA_SEED: u64 = 0;
const SALT_SEED: u64 = 1;

/// The first token id a media placeholder may take; below it live the vocabulary's own.
const MEDIA_TOKEN_BASE: u32 = 1_000_000;
const MEDIA_TOKEN_BITS: u64 = (1 << 30) - 1;

/// What besides the tokens tells two cached blocks apart. An empty string is the same as none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Namespace<'a> {
    pub lora_name: Option<&'a str>,
    pub cache_salt: Option<&'a str>,
}

impl Namespace<'_> {
    fn seed(self) -> u64 {
        let part = |text: Option<&str>, seed| match text {
            Some(text) if !text.is_empty() => xxh3_64_with_seed(text.as_bytes(), seed),
            _ => 0,
        };
        CHAIN_SEED
            .wrapping_add(part(self.lora_name, LORA_SEED))
            .wrapping_add(part(self.cache_salt, SALT_SEED))
    }
}

/// Hashes prompts of one block size in one namespace. Cheap to make and to copy.
#[derive(Clone, Copy, Debug)]
pub struct BlockHasher {
    block_size: BlockSize,
    /// Tokens a hash looks at: the block, or the block and one more for EAGLE engines.
    window_tokens: usize,
    seed: u64,
}

impl BlockHasher {
    pub fn new(block_size: BlockSize, namespace: Namespace<'_>) -> Self {
        Self { block_size, window_tokens: block_size.tokens(), seed: namespace.seed() }
    }

    /// For engines that draft with EAGLE heads: each hash also looks at the first token of the next block.
    #[must_use]
    pub fn with_eagle_window(mut self) -> Self {
        self.window_tokens = self.block_size.tokens() + 1;
        self
    }

    /// How many whole blocks a prompt of `tokens` tokens has.
    pub fn block_count(&self, tokens: usize) -> usize {
        let lookahead = self.window_tokens - self.block_size.tokens();
        tokens.saturating_sub(lookahead) / self.block_size.tokens()
    }

    /// The hashes of the whole blocks of `tokens`, in order; a partial last block has none.
    pub fn blocks<'t>(&self, tokens: &'t [TokenId]) -> impl ExactSizeIterator<Item = BlockHash> + use<'t> {
        self.blocks_from(tokens, 0)
    }

    fn blocks_from<'t>(
        &self,
        tokens: &'t [TokenId],
        first_block: usize,
    ) -> impl ExactSizeIterator<Item = BlockHash> + use<'t> {
        let Self { block_size, window_tokens, seed } = *self;
        (first_block..self.block_count(tokens.len()).max(first_block)).map(move |block| {
            let start = block * block_size.tokens();
            hash_window(&tokens[start..start + window_tokens], seed)
        })
    }

    /// The hash of one block that shows media: its tokens, then the media hashes in ascending order.
    ///
    /// `media` is sorted in place. The usual way is to put [`media_token`]s into the prompt instead; this one
    /// is for publishers that cannot.
    pub fn block_with_media(&self, tokens: &[TokenId], media: &mut [u64]) -> BlockHash {
        media.sort_unstable();
        let mut bytes = Vec::with_capacity(tokens.len() * 4 + media.len() * 8);
        tokens.iter().for_each(|token| bytes.extend_from_slice(&token.to_le_bytes()));
        media.iter().for_each(|hash| bytes.extend_from_slice(&hash.to_le_bytes()));
        BlockHash(xxh3_64_with_seed(&bytes, self.seed))
    }

    /// Appends the sequence hashes of the blocks of `tokens` that `hashes` does not cover yet.
    ///
    /// `hashes` must be this hasher's for a prefix of `tokens`; what is there is kept and chained onto, so a
    /// conversation's next turn pays for its new blocks only.
    pub fn extend(&self, tokens: &[TokenId], hashes: &mut Vec<SequenceHash>) {
        let parent = hashes.last().copied();
        hashes.extend(SequenceHash::chain(parent, self.blocks_from(tokens, hashes.len())));
    }

    /// The sequence hashes of a whole prompt.
    pub fn sequence(&self, tokens: &[TokenId]) -> Vec<SequenceHash> {
        let mut hashes = Vec::new();
        self.extend(tokens, &mut hashes);
        hashes
    }
}

impl SequenceHash {
    /// The names of `blocks` that follow each other, the first one after `parent` or opening a prompt.
    pub fn chain<I>(parent: Option<Self>, blocks: I) -> impl Iterator<Item = Self> + use<I>
    where
        I: IntoIterator<Item = BlockHash>,
    {
        blocks.into_iter().scan(parent, |parent, block| {
            let hash = Self::after(*parent, block);
            *parent = Some(hash);
            Some(hash)
        })
    }

    /// The name of `block` when it follows `parent`, or opens a prompt.
    #[inline]
    pub fn after(parent: Option<Self>, block: BlockHash) -> Self {
        match parent {
            None => Self(block.0),
            Some(parent) => {
                let mut pair = [0_u8; 16];
                pair[..8].copy_from_slice(&parent.0.to_le_bytes());
                pair[8..].copy_from_slice(&block.0.to_le_bytes());
                Self(xxh3_64_with_seed(&pair, CHAIN_SEED))
            }
        }
    }
}

/// The token id that stands for a piece of media in a prompt, so that plain hashing sees which one it is.
pub fn media_token(media_hash: u64) -> TokenId {
    MEDIA_TOKEN_BASE + (media_hash & MEDIA_TOKEN_BITS) as u32
}

#[inline]
fn hash_window(tokens: &[TokenId], seed: u64) -> BlockHash {
    // On a little-endian machine the ids already lie in memory as they are to be hashed.
    #[cfg(target_endian = "little")]
    return BlockHash(xxh3_64_with_seed(bytemuck::cast_slice(tokens), seed));
    #[cfg(target_endian = "big")]
    {
        let mut state = xxhash_rust::xxh3::Xxh3::with_seed(seed);
        tokens.iter().for_each(|token| state.update(&token.to_le_bytes()));
        BlockHash(state.digest())
    }
}

#[cfg(test)]
mod tests;
