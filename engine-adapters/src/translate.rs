//! From what an engine says to what the index understands: tokens hashed, adapters and salts folded in, memory
//! kinds as tiers, and everything left out that a prompt could never match.
//!
//! Leaving out is always allowed, guessing never: the index may know less than the engine holds, not more.

use std::sync::Arc;

use hashbrown::HashMap;
use kvlane_indexer::{BlockHasher, BlockSize, EngineBlockId, KvEvent, Namespace, StoredBlock, Tier};
use serde::Serialize;

use crate::vllm::decode::{Event, Place, Stored};

/// Kinds of layers whose blocks hold a prompt's attention; other groups of a hybrid model have states of their own.
const ATTENTION: [&str; 3] = ["full_attention", "mla_attention", "sink_full_attention"];

/// Salted blocks remembered per worker, for the salt of those that follow them.
const MAX_SALTED: usize = 1 << 20;

/// Groups of layers a model may have.
const MAX_GROUPS: usize = 1024;

/// Blocks that were left out, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// They hold something besides tokens, such as an image.
    pub media: u64,
    /// They lie in memory of a kind that is not known, or not here.
    pub elsewhere: u64,
    /// They belong to a group of layers without attention.
    pub other_layers: u64,
    /// The event did not say which tokens they hold.
    pub no_tokens: u64,
    /// They belong to an adapter that is only known by number.
    pub nameless_adapter: u64,
    /// They are not full, or follow one that is not.
    pub partial: u64,
    /// Too many salted blocks to remember.
    pub too_many_salted: u64,
}

impl LeftOut {
    pub fn total(&self) -> u64 {
        let Self { media, elsewhere, other_layers, no_tokens, nameless_adapter, partial, too_many_salted } =
            self;
        media + elsewhere + other_layers + no_tokens + nameless_adapter + partial + too_many_salted
    }
}

/// The one thing that makes a whole feed useless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the engine's blocks have {found} tokens, expected {expected} as configured (`--kv-cache-block-size`); nothing it caches would ever be found"
)]
pub struct WrongBlockSize {
    pub found: u32,
    pub expected: usize,
}

/// Translates one worker's events (one data-parallel rank), in order.
#[derive(Debug)]
pub struct Translator {
    block_size: BlockSize,
    /// The salt of every salted block that is held on the device: only a prompt's first one is announced with it.
    salts: HashMap<EngineBlockId, Arc<str>>,
    /// Whether a group of layers is attention, once an event has said so.
    groups: HashMap<u32, bool>,
    pub left_out: LeftOut,
}

impl Translator {
    pub fn new(block_size: BlockSize) -> Self {
        Self { block_size, salts: HashMap::new(), groups: HashMap::new(), left_out: LeftOut::default() }
    }

    /// Forgets what it knows of the worker's blocks, because the index does.
    pub fn forget(&mut self) {
        self.salts.clear();
        self.groups.clear();
    }

    /// One event; none when nothing of it is for the index.
    pub fn translate(&mut self, event: &Event) -> Result<Option<KvEvent>, WrongBlockSize> {
        match event {
            Event::Stored(stored) => self.stored(stored),
            Event::Removed { names, place } => {
                let blocks = names.len() as u64;
                let Some(tier) = self.tier(place, blocks) else { return Ok(None) };
                if tier == Tier::Device && !self.salts.is_empty() {
                    names.iter().for_each(|name| drop(self.salts.remove(name)));
                }
                Ok(Some(KvEvent::Removed { tier, ids: names.clone() }))
            }
            Event::Cleared => {
                self.salts.clear();
                Ok(Some(KvEvent::Cleared { tier: None }))
            }
        }
    }

    /// Where an event's blocks are, when they are of any use here.
    fn tier(&mut self, place: &Place, blocks: u64) -> Option<Tier> {
        let group = place.group.unwrap_or(0);
        let attention = match &place.kind {
            Some(kind) => {
                let attention = ATTENTION.contains(&kind.as_str());
                if self.groups.len() < MAX_GROUPS || self.groups.contains_key(&group) {
                    self.groups.insert(group, attention);
                }
                attention
            }
            None => self.groups.get(&group).copied().unwrap_or(group == 0),
        };
        if !attention {
            self.left_out.other_layers += blocks;
            return None;
        }
        let tier = place.tier();
        if tier.is_none() {
            self.left_out.elsewhere += blocks;
        }
        tier
    }

    fn stored(&mut self, stored: &Stored) -> Result<Option<KvEvent>, WrongBlockSize> {
        let blocks = stored.names.len() as u64;
        let Some(tier) = self.tier(&stored.place, blocks) else { return Ok(None) };
        if stored.tokens.is_empty() {
            self.left_out.no_tokens += blocks;
            return Ok(None);
        }
        if stored.block_tokens as usize != self.block_size.tokens() {
            return Err(WrongBlockSize { found: stored.block_tokens, expected: self.block_size.tokens() });
        }
        if stored.lora_name.is_none() && stored.lora_id.is_some_and(|id| id != 0) {
            self.left_out.nameless_adapter += blocks;
            return Ok(None);
        }
        let own = stored.extra.cache_salt.as_deref().map(Arc::from);
        let salt: Option<Arc<str>> = own.or_else(|| self.salts.get(&stored.parent?).cloned());
        let namespace = Namespace { lora_name: stored.lora_name.as_deref(), cache_salt: salt.as_deref() };
        let mut hasher = BlockHasher::new(self.block_size, namespace);
        if stored.pairs {
            hasher = hasher.with_eagle_window();
        }
        let media_from = stored.extra.media_from.unwrap_or(usize::MAX);
        let hashes = hasher.blocks(&stored.tokens);
        let full = stored.names.len().min(hashes.len());
        self.left_out.partial += (stored.names.len() - full) as u64;
        self.left_out.media += full.saturating_sub(media_from) as u64;
        let kept = stored.names.iter().zip(hashes).take(media_from);
        let blocks: Vec<StoredBlock> = kept.map(|(name, hash)| StoredBlock { id: *name, hash }).collect();
        if blocks.is_empty() {
            return Ok(None);
        }
        if let Some(salt) = salt.filter(|_| tier == Tier::Device) {
            if self.salts.len() + blocks.len() > MAX_SALTED {
                self.left_out.too_many_salted += blocks.len() as u64;
                return Ok(None);
            }
            self.salts.extend(blocks.iter().map(|block| (block.id, salt.clone())));
        }
        Ok(Some(KvEvent::Stored { tier, parent: stored.parent, blocks }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(parent: Option<u64>, names: &[u64], tokens: u32) -> Stored {
        Stored {
            names: names.iter().map(|name| (*name).into()).collect(),
            parent: parent.map(EngineBlockId::from),
            tokens: (0..tokens).collect(),
            block_tokens: 4,
            ..Stored::default()
        }
    }

    fn translator() -> Translator {
        Translator::new(BlockSize::new(4).unwrap())
    }

    fn blocks(event: Option<KvEvent>) -> Vec<StoredBlock> {
        match event {
            Some(KvEvent::Stored { blocks, .. }) => blocks,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_salt_goes_with_everything_that_follows() {
        let mut translator = translator();
        let mut first = stored(None, &[1, 2], 8);
        let plain = blocks(translator.translate(&Event::Stored(first.clone())).unwrap());
        first.extra.cache_salt = Some("a".to_owned());
        let salted = blocks(translator.translate(&Event::Stored(first)).unwrap());
        let next = blocks(translator.translate(&Event::Stored(stored(Some(2), &[3], 4))).unwrap());
        let namespace = Namespace { cache_salt: Some("a"), ..Namespace::default() };
        let hasher = BlockHasher::new(BlockSize::new(4).unwrap(), namespace);
        assert_eq!(
            salted.iter().map(|block| block.hash).collect::<Vec<_>>(),
            hasher.blocks(&[0, 1, 2, 3, 4, 5, 6, 7]).collect::<Vec<_>>()
        );
        assert_eq!(next[0].hash, hasher.blocks(&[0, 1, 2, 3]).next().unwrap());
        assert_ne!(plain[0].hash, salted[0].hash);
        let gone = Event::Removed { names: vec![2_u64.into(), 3_u64.into()], place: Place::default() };
        translator.translate(&gone).unwrap();
        assert_eq!(translator.salts.len(), 1);
        translator.translate(&Event::Cleared).unwrap();
        assert!(translator.salts.is_empty());
    }

    #[test]
    fn what_cannot_be_matched_is_left_out_and_counted() {
        let place = |medium: Option<&str>, group, kind: Option<&str>| Place {
            medium: medium.map(str::to_owned),
            group,
            kind: kind.map(str::to_owned),
            foreign: false,
        };
        let mut translator = translator();
        let mut skip = |change: &dyn Fn(&mut Stored)| {
            let mut event = stored(None, &[1, 2], 8);
            change(&mut event);
            assert_eq!(translator.translate(&Event::Stored(event)), Ok(None));
        };
        skip(&|event| event.place = place(Some("OBJ"), None, None));
        skip(&|event| event.place.foreign = true);
        skip(&|event| event.place = place(None, Some(1), Some("mamba")));
        skip(&|event| event.place = place(None, Some(2), None));
        skip(&|event| event.tokens.clear());
        skip(&|event| event.lora_id = Some(3));
        skip(&|event| event.extra.media_from = Some(0));
        skip(&|event| event.tokens.truncate(3));
        let left_out = translator.left_out;
        assert_eq!((left_out.elsewhere, left_out.other_layers, left_out.total()), (4, 4, 16));
        // A group that was attention once stays it when an event does not say so.
        let mut attention = stored(None, &[1], 4);
        attention.place = place(Some("CPU"), Some(3), Some("mla_attention"));
        assert!(matches!(
            translator.translate(&Event::Stored(attention)).unwrap(),
            Some(KvEvent::Stored { tier: Tier::Host, .. })
        ));
        let removed = Event::Removed { names: vec![1_u64.into()], place: place(None, Some(3), None) };
        assert!(translator.translate(&removed).unwrap().is_some());
        let partial = blocks(translator.translate(&Event::Stored(stored(None, &[1, 2, 3], 10))).unwrap());
        assert_eq!((partial.len(), translator.left_out.partial), (2, 3));
    }

    #[test]
    fn a_wrong_block_size_is_refused_with_both_numbers() {
        let mut event = stored(None, &[1], 16);
        event.block_tokens = 16;
        let refused = translator().translate(&Event::Stored(event)).unwrap_err().to_string();
        assert!(
            refused.starts_with("the engine's blocks have 16 tokens, expected 4 as configured"),
            "{refused}"
        );
    }

    #[test]
    fn pairs_of_tokens_are_hashed_one_token_wider() {
        let mut event = stored(None, &[1, 2], 9);
        event.pairs = true;
        let found = blocks(translator().translate(&Event::Stored(event)).unwrap());
        let hasher = BlockHasher::new(BlockSize::new(4).unwrap(), Namespace::default()).with_eagle_window();
        let tokens: Vec<u32> = (0..9).collect();
        assert_eq!(
            found.iter().map(|block| block.hash).collect::<Vec<_>>(),
            hasher.blocks(&tokens).collect::<Vec<_>>()
        );
    }
}
