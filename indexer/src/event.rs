//! What an engine says about its cache, in our words.
//!
//! An event speaks of one worker and one tier. [`KvEvent::check`] refuses what no engine can mean, naming the
//! field; whether the blocks it speaks of are known is the index's business.

use crate::block::{BlockHash, EngineBlockId, Tier};

/// One block as an engine announces it: its own name, and what its tokens hash to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredBlock {
    pub id: EngineBlockId,
    pub hash: BlockHash,
}

/// A change of one worker's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// `blocks` follow each other, the first one follows `parent` or opens a prompt. At any time one name
    /// stands for one block of a worker and tier; engines name blocks by their content, so it does.
    Stored { tier: Tier, parent: Option<EngineBlockId>, blocks: Vec<StoredBlock> },
    /// These blocks are gone from this tier.
    Removed { tier: Tier, ids: Vec<EngineBlockId> },
    /// Everything this worker held is gone, from one tier or from all of them.
    Cleared { tier: Option<Tier> },
}

/// Why an event cannot be meant. The index is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    #[error("stored.blocks is empty, expected at least one block")]
    NoBlocks,
    #[error("stored.blocks[{second}].id repeats stored.blocks[{first}].id, expected a name per block")]
    RepeatedBlock { first: usize, second: usize },
    #[error("stored.blocks[{position}].id is stored.parent, expected a block that follows it")]
    ParentAmongBlocks { position: usize },
    #[error("stored.blocks reaches depth {depth}, expected at most {max}")]
    TooDeep { depth: u64, max: u32 },
    #[error("worker is number {workers}, expected at most {max} (`max_workers`)")]
    TooManyWorkers { workers: usize, max: usize },
}

impl KvEvent {
    /// Refuses an event that contradicts itself.
    pub fn check(&self) -> Result<(), EventError> {
        let Self::Stored { parent, blocks, .. } = self else {
            return Ok(());
        };
        if blocks.is_empty() {
            return Err(EventError::NoBlocks);
        }
        if let Some(parent) = parent
            && let Some(position) = blocks.iter().position(|block| block.id == *parent)
        {
            return Err(EventError::ParentAmongBlocks { position });
        }
        match repeated(blocks) {
            Some((first, second)) => Err(EventError::RepeatedBlock { first, second }),
            None => Ok(()),
        }
    }
}

/// The first block whose name an earlier one of the same event carries.
fn repeated(blocks: &[StoredBlock]) -> Option<(usize, usize)> {
    // Most events are a turn's blocks or one.
    match blocks.len() {
        0 | 1 => return None,
        2..=16 => return repeated_in(&mut [0; 32], blocks),
        17..=64 => return repeated_in(&mut [0; 128], blocks),
        _ => {}
    }
    repeated_in(&mut vec![0; (2 * blocks.len()).next_power_of_two()], blocks)
}

/// Puts each block's position, counted from one, where its name hashes to, or in the next free place.
fn repeated_in(places: &mut [u32], blocks: &[StoredBlock]) -> Option<(usize, usize)> {
    let mask = places.len() - 1;
    for (second, block) in blocks.iter().enumerate() {
        let mut at = block.id.spread() as usize & mask;
        while let Some(first) = (places[at] as usize).checked_sub(1) {
            if blocks[first].id == block.id {
                return Some((first, second));
            }
            at = (at + 1) & mask;
        }
        places[at] = second as u32 + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(parent: Option<u64>, ids: impl IntoIterator<Item = u64>) -> KvEvent {
        KvEvent::Stored {
            tier: Tier::Device,
            parent: parent.map(EngineBlockId::from),
            blocks: ids
                .into_iter()
                .map(|id| StoredBlock { id: EngineBlockId::from(id), hash: BlockHash(id) })
                .collect(),
        }
    }

    #[test]
    fn an_event_that_contradicts_itself_is_refused_by_field() {
        assert_eq!(stored(None, []).check(), Err(EventError::NoBlocks));
        assert_eq!(stored(Some(3), 1..5).check(), Err(EventError::ParentAmongBlocks { position: 2 }));
        let twice = stored(None, [1, 2, 3, 2]).check().unwrap_err();
        assert_eq!(twice, EventError::RepeatedBlock { first: 1, second: 3 });
        assert_eq!(
            twice.to_string(),
            "stored.blocks[3].id repeats stored.blocks[1].id, expected a name per block"
        );
    }

    #[test]
    fn a_repeat_is_found_however_long_the_event() {
        for len in [2_u64, 100, 128, 129, 1000, 100_000] {
            assert_eq!(stored(None, 0..len).check(), Ok(()));
            let repeat = stored(None, (0..len).chain([len / 2])).check();
            let (first, second) = (len as usize / 2, len as usize);
            assert_eq!(repeat, Err(EventError::RepeatedBlock { first, second }));
        }
    }

    #[test]
    fn removing_nothing_is_allowed() {
        assert_eq!(KvEvent::Removed { tier: Tier::Host, ids: Vec::new() }.check(), Ok(()));
        assert_eq!(KvEvent::Cleared { tier: None }.check(), Ok(()));
    }
}
