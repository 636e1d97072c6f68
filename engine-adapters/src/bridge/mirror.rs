//! What one worker holds, block by block, so that it can be said again from the start.

use hashbrown::{HashMap, HashSet};
use kvlane_indexer::{Applied, BlockHash, EngineBlockId, KvEvent, SequenceHash, StoredBlock, Tier};

/// A block and all that was before it when it was stored. Not the name of the one before: an engine that gives a name to
/// something else does not move what followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    above: Option<SequenceHash>,
    path: SequenceHash,
    hash: BlockHash,
}

/// Blocks by tier and name. Counts one copy each: second copies are seen to before.
#[derive(Debug, Default)]
pub struct Mirror {
    held: HashMap<(Tier, EngineBlockId), Held>,
}

/// Blocks in one event of a snapshot.
const RUN: usize = 512;

impl Mirror {
    pub fn len(&self) -> usize {
        self.held.len()
    }

    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub fn clear(&mut self) {
        self.held.clear();
    }

    /// On its own tier, or else on any.
    fn find(&self, tier: Tier, block: EngineBlockId) -> Option<&Held> {
        let mut tiers = std::iter::once(&tier).chain(Tier::ALL.iter());
        tiers.find_map(|tier| self.held.get(&(*tier, block)))
    }

    /// Takes an event in. Blocks that follow an unknown one are dropped, as the index does.
    pub fn apply(&mut self, event: &KvEvent, held: &mut dyn FnMut(EngineBlockId)) -> Applied {
        let mut applied = Applied::default();
        match event {
            KvEvent::Stored { tier, parent, blocks } => {
                let mut above = match parent.map(|parent| self.find(*tier, parent)) {
                    None => None,
                    Some(Some(parent)) => Some(parent.path),
                    Some(None) => {
                        applied.orphaned = blocks.len();
                        return applied;
                    }
                };
                let paths = SequenceHash::chain(above, blocks.iter().map(|block| block.hash));
                for (block, path) in blocks.iter().zip(paths) {
                    let entry = Held { above: above.replace(path), path, hash: block.hash };
                    match self.held.insert((*tier, block.id), entry) {
                        Some(before) if before.path == path => held(block.id),
                        // A name given to something else is news as well.
                        _ => applied.stored += 1,
                    }
                }
            }
            KvEvent::Removed { tier, ids } => {
                for id in ids {
                    match self.held.remove(&(*tier, *id)) {
                        Some(_) => applied.removed += 1,
                        None => applied.unknown += 1,
                    }
                }
            }
            KvEvent::Cleared { tier } => {
                let before = self.held.len();
                self.held.retain(|(other, _), _| tier.is_some_and(|tier| tier != *other));
                applied.removed = before - self.held.len();
            }
        }
        applied
    }

    /// Everything held as stored events, parents before children, in runs. Blocks whose parent is gone are left
    /// out: nobody could place them. Of two names for one block the lower is told.
    pub fn events(&self) -> Vec<KvEvent> {
        let mut children: HashMap<Option<SequenceHash>, Vec<(SequenceHash, Tier, EngineBlockId)>> =
            HashMap::new();
        for ((tier, block), held) in &self.held {
            children.entry(held.above).or_default().push((held.path, *tier, *block));
        }
        for blocks in children.values_mut() {
            blocks.sort_unstable();
            blocks.dedup_by_key(|(path, tier, _)| (*path, *tier));
            blocks.sort_unstable_by_key(|(_, tier, block)| (*tier, *block));
        }
        let mut events = Vec::new();
        let mut open: Vec<(Tier, Option<EngineBlockId>, EngineBlockId)> = Vec::new();
        let mut seen: HashSet<SequenceHash> = HashSet::new();
        let mut extend = |open: &mut Vec<_>, parent: Option<(EngineBlockId, SequenceHash)>| {
            // A block on two tiers opens its children once.
            if parent.is_some_and(|(_, path)| !seen.insert(path)) {
                return;
            }
            let (name, path) = (parent.map(|(name, _)| name), parent.map(|(_, path)| path));
            let next = children.get(&path).into_iter().flatten();
            // A name that stands above itself, on another tier, cannot be told.
            let next = next.filter(|(_, _, block)| name != Some(*block));
            open.extend(next.map(|(_, tier, block)| (*tier, name, *block)));
        };
        extend(&mut open, None);
        while let Some((tier, parent, first)) = open.pop() {
            let mut blocks = Vec::new();
            let mut block = first;
            // As far as the path goes on alone, on this tier.
            while let Some(held) = self.held.get(&(tier, block)) {
                blocks.push(StoredBlock { id: block, hash: held.hash });
                let before = open.len();
                extend(&mut open, Some((block, held.path)));
                match open[before..] {
                    [(next_tier, _, next)]
                        if next_tier == tier && Some(next) != parent && blocks.len() < RUN =>
                    {
                        open.truncate(before);
                        block = next;
                    }
                    _ => break,
                }
            }
            events.push(KvEvent::Stored { tier, parent, blocks });
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use kvlane_indexer::{Index, IndexConfig, SequenceHash, Tick, WorkerId};
    use proptest::prelude::*;

    use super::*;

    /// A block by its path in a small forest: its number's digits in base three are the way from the root.
    fn path(block: u64) -> Vec<u64> {
        let mut path = vec![block];
        while let Some(last) = path.last().copied().filter(|last| *last >= 3) {
            path.push(last / 3 - 1);
        }
        path.reverse();
        path
    }

    fn stored(tier: Tier, block: u64, from: usize) -> KvEvent {
        let path = path(block);
        let from = from.min(path.len() - 1);
        let parent = from.checked_sub(1).map(|at| path[at].into());
        let blocks =
            path[from..].iter().map(|id| StoredBlock { id: (*id).into(), hash: BlockHash(*id) }).collect();
        KvEvent::Stored { tier, parent, blocks }
    }

    proptest! {
        #[test]
        fn a_snapshot_says_what_an_index_would_know(
            history in prop::collection::vec((0..2_u8, 0..200_u64, 0..4_usize, any::<bool>()), 1..80),
        ) {
            let worker = WorkerId::new(1, 0);
            let index = Index::new(IndexConfig { shards: 4, ..IndexConfig::default() });
            let mut mirror = Mirror::default();
            for (kind, block, from, host) in history {
                let tier = if host { Tier::Host } else { Tier::Device };
                let event = match kind {
                    0 => stored(tier, block, from),
                    // From the end of the path, as engines do.
                    _ => {
                        let below = |other: &u64| path(*other).contains(&block);
                        let ids = (0..200_u64).rev().filter(below).map(EngineBlockId::from).collect();
                        KvEvent::Removed { tier, ids }
                    }
                };
                let (mut a, mut b) = (Vec::new(), Vec::new());
                let one = mirror.apply(&event, &mut |id| a.push(id));
                let other = index.apply_noting(worker, &event, Tick(0), |id| b.push(id)).unwrap();
                prop_assert_eq!(one, other);
                prop_assert_eq!(a, b);
            }
            let copy = Index::new(IndexConfig { shards: 4, ..IndexConfig::default() });
            for event in mirror.events() {
                let applied = copy.apply(worker, &event, Tick(0)).unwrap();
                prop_assert_eq!((applied.orphaned, applied.unknown), (0, 0));
            }
            for block in 0..200 {
                let prompt: Vec<SequenceHash> = SequenceHash::chain(None, path(block).into_iter().map(BlockHash)).collect();
                let of = |index: &Index| index.overlap(&prompt, Tick(0)).of(worker);
                prop_assert_eq!(of(&copy).device, of(&index).device, "{}", block);
            }
        }
    }
    /// A name that comes to mean something else, and two names for one block: no engine should, and a bridge tells on what is
    /// true of it.
    #[test]
    fn names_that_are_given_anew_move_nothing() {
        let run = |blocks: &[(u64, u64)]| KvEvent::Stored {
            tier: Tier::Device,
            parent: None,
            blocks: blocks
                .iter()
                .map(|(id, hash)| StoredBlock { id: (*id).into(), hash: BlockHash(*hash) })
                .collect(),
        };
        let mut mirror = Mirror::default();
        for event in [run(&[(6, 1), (8, 3)]), run(&[(6, 2), (1, 3)]), run(&[(12, 2), (49, 3), (50, 4)])] {
            let _ = mirror.apply(&event, &mut |_| ());
        }
        let (worker, told) =
            (WorkerId::new(1, 0), Index::new(IndexConfig { shards: 4, ..IndexConfig::default() }));
        for event in mirror.events() {
            assert_eq!(told.apply(worker, &event, Tick(0)).unwrap().orphaned, 0, "{event:?}");
        }
        told.check();
        let held = |path: &[u64]| {
            let prompt: Vec<_> = SequenceHash::chain(None, path.iter().copied().map(BlockHash)).collect();
            told.overlap(&prompt, Tick(0)).of(worker).device
        };
        assert_eq!((held(&[2, 3, 4]), held(&[1, 3])), (3, 0));
    }

    /// The same name on two tiers, once above itself.
    #[test]
    fn a_name_above_itself_is_told_as_far_as_it_can_be() {
        let store = |tier: Tier, parent: Option<u64>, ids: &[u64]| KvEvent::Stored {
            tier,
            parent: parent.map(EngineBlockId::from),
            blocks: ids.iter().map(|id| StoredBlock { id: (*id).into(), hash: BlockHash(*id) }).collect(),
        };
        for deeper in [&[7][..], &[1, 7], &[1, 2, 7, 3]] {
            let mut mirror = Mirror::default();
            for event in [
                store(Tier::Device, None, &[7]),
                store(Tier::Host, None, &[7]),
                store(Tier::Host, Some(7), &[8]),
            ] {
                let _ = mirror.apply(&event, &mut |_| ());
            }
            for (at, id) in deeper.iter().enumerate() {
                let parent = if at == 0 { 7 } else { deeper[at - 1] };
                let _ = mirror.apply(&store(Tier::Host, Some(parent), &[*id]), &mut |_| ());
            }
            let (worker, told) =
                (WorkerId::new(1, 0), Index::new(IndexConfig { shards: 4, ..IndexConfig::default() }));
            for event in mirror.events() {
                event.check().unwrap();
                assert_eq!(told.apply(worker, &event, Tick(0)).unwrap().orphaned, 0, "{event:?}");
            }
            told.check();
        }
    }
}
