//! The JSON of `POST /kv_cache_events`.

use kvlane_indexer::{EngineBlockId, Tier, TokenId};
use serde::Deserialize;

/// One event as the server writes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Event {
    pub event_id: u64,
    pub data: Data,
    /// Layers with a sliding window have events of their own.
    #[serde(default)]
    pub window_size: Option<u64>,
    #[serde(default)]
    pub attention_dp_rank: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Data {
    Created {},
    Stored {
        #[serde(default)]
        parent_hash: Option<Name>,
        blocks: Vec<Block>,
        #[serde(default)]
        lora_name: Option<String>,
    },
    Removed {
        block_hashes: Vec<Name>,
    },
    Updated {
        block_hash: Name,
        #[serde(default)]
        cache_level: Option<Moved>,
    },
    AllCleared {},
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Block {
    pub block_hash: Name,
    pub tokens: Vec<Token>,
    #[serde(default)]
    pub cache_level: u8,
    #[serde(default)]
    pub cache_salt: Option<String>,
    /// Set when the block holds media.
    #[serde(default)]
    pub mm_keys: Option<Vec<serde_json::Value>>,
    #[serde(default)]
    pub lora_id: Option<i64>,
}

impl Block {
    pub(super) fn has_media(&self) -> bool {
        self.mm_keys.as_ref().is_some_and(|keys| !keys.is_empty())
            || self.tokens.iter().any(|token| token.token_extra_id != 0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Token {
    pub token_id: TokenId,
    /// Set where the token stands for media.
    #[serde(default)]
    pub token_extra_id: u64,
}

/// From one kind of memory to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Moved {
    pub new_value: u8,
    pub old_value: u8,
}

/// A block's name: an integer, often above 2^53, or a digest in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Name {
    Unsigned(u64),
    Signed(i64),
    Digest(String),
}

impl Name {
    pub fn id(&self) -> EngineBlockId {
        match self {
            Self::Unsigned(name) => (*name).into(),
            Self::Signed(name) => (*name).into(),
            Self::Digest(name) => name.as_bytes().into(),
        }
    }
}

/// Level 0 is the device, 1 the host.
pub(super) fn tier(level: u8) -> Option<Tier> {
    match level {
        0 => Some(Tier::Device),
        1 => Some(Tier::Host),
        _ => None,
    }
}

/// All events of an answer. One that cannot be read spoils them all: they are handed out only once, so what the
/// others build on would be missing.
pub fn decode(body: &[u8]) -> Result<Vec<Event>, serde_json::Error> {
    serde_json::from_slice(body)
}
