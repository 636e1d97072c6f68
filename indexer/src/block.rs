//! The words for a prompt cut into blocks.
//!
//! A prompt is a run of [`TokenId`]s, cut into blocks of a fixed number of tokens. A [`BlockHash`] names one
//! block's tokens alone, a [`SequenceHash`] names a block together with everything before it, and an
//! [`EngineBlockId`] is whatever name the engine itself gave that block.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::sync::LazyLock;

use xxhash_rust::xxh3::xxh3_64;

/// One token of a prompt, as the model's tokenizer numbers it.
pub type TokenId = u32;

/// How many tokens make one block; router and engine must agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockSize(NonZeroU32);

impl BlockSize {
    /// Where nobody says: as many tokens as TensorRT-LLM's blocks have by default.
    pub const USUAL: Self = Self(NonZeroU32::MIN.saturating_add(31));

    /// `None` when `tokens` is zero.
    pub const fn new(tokens: u32) -> Option<Self> {
        match NonZeroU32::new(tokens) {
            Some(tokens) => Some(Self(tokens)),
            None => None,
        }
    }

    pub const fn tokens(self) -> usize {
        self.0.get() as usize
    }
}

/// Hash of one block's tokens, blind to what comes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub u64);

/// Hash of one block and of every block before it. Two prompts share their first `n` blocks exactly when
/// their `n`-th sequence hashes are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct SequenceHash(pub u64);

/// The engine's own name for a block: opaque, compared and never interpreted.
///
/// Engines name blocks with signed or unsigned integers or with byte strings (a digest). All three become 64
/// bits here; a byte string is hashed, so that two digests meet by accident about as often as two 64-bit
/// names of the engine's own making would.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct EngineBlockId(u64);

impl EngineBlockId {
    pub const fn to_u64(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) fn spread(self) -> u64 {
        spread(self.0)
    }
}

impl SequenceHash {
    #[inline]
    pub(crate) fn spread(self) -> u64 {
        spread(self.0)
    }
}

/// Spreads any numbering over all bits, for hash tables. Differently in every process: names and block hashes
/// come from outside, and nobody should be able to choose ones that meet.
#[inline]
fn spread(value: u64) -> u64 {
    static SECRET: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0) | 1);
    let product = u128::from(value ^ *SECRET) * 0x9E37_79B9_7F4A_7C15;
    (product >> 64) as u64 ^ product as u64
}

impl From<u64> for EngineBlockId {
    fn from(id: u64) -> Self {
        Self(id)
    }
}

impl From<i64> for EngineBlockId {
    /// Keeps the bits, as every peer does: `-1` and `u64::MAX` are one name.
    fn from(id: i64) -> Self {
        Self(id.cast_unsigned())
    }
}

impl From<&[u8]> for EngineBlockId {
    fn from(id: &[u8]) -> Self {
        Self(xxh3_64(id))
    }
}

impl fmt::Debug for EngineBlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineBlockId({:#018x})", self.0)
    }
}

/// Where a worker keeps a block. Kept apart everywhere: a block on disk is not a block on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// In the accelerator's memory, ready to use.
    #[default]
    Device,
    /// In the host's memory, a copy away.
    Host,
    /// On local disk or in an external store.
    Disk,
}

impl Tier {
    pub const ALL: [Self; 3] = [Self::Device, Self::Host, Self::Disk];

    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_and_unsigned_names_with_the_same_bits_are_one_name() {
        assert_eq!(EngineBlockId::from(-1_i64), EngineBlockId::from(u64::MAX));
        assert_ne!(EngineBlockId::from(1_u64), EngineBlockId::from(2_u64));
    }

    #[test]
    fn byte_names_are_told_apart_by_every_byte() {
        let mut digest = [7_u8; 32];
        let first = EngineBlockId::from(&digest[..]);
        digest[31] ^= 1;
        assert_ne!(first, EngineBlockId::from(&digest[..]));
        assert_ne!(EngineBlockId::from(&b""[..]), EngineBlockId::from(&b"\0"[..]));
    }

    #[test]
    fn a_block_of_no_tokens_is_refused() {
        assert_eq!(BlockSize::new(0), None);
        assert_eq!(BlockSize::new(32).map(BlockSize::tokens), Some(32));
    }
}
