//! Random histories, applied to the index and to the most naive thing that could answer the same question.
//!
//! The naive index is a map from (worker, tier, name) to the block's whole path; its overlap is found by
//! trying every depth. Both must agree on every worker and every prompt after every event, the index must be
//! in its form, and a snapshot taken anywhere must restore to an index that goes on agreeing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, HashMap};

use kvlane_indexer::{
    BlockHash, EngineBlockId, Held, Index, IndexConfig, KvEvent, SequenceHash, StoredBlock, Tick, Tier,
    WorkerId,
};
use proptest::prelude::*;

const WORKERS: u64 = 4;

fn worker(n: u64) -> WorkerId {
    WorkerId::new(n / 2, (n % 2) as u32)
}

/// A path is a word over a tiny alphabet, so that paths share prefixes, branch and meet again.
type Path = Vec<u8>;

fn name(worker: u64, path: &[u8]) -> EngineBlockId {
    // Odd workers have names of their own, even ones share theirs, as engines with and without a hash seed do.
    let mut bytes = path.to_vec();
    bytes.push(if worker % 2 == 1 { worker as u8 + 100 } else { 100 });
    EngineBlockId::from(&bytes[..])
}

fn block_hash(letter: u8) -> BlockHash {
    BlockHash(u64::from(letter) + 1)
}

fn sequence(path: &[u8]) -> Vec<SequenceHash> {
    SequenceHash::chain(None, path.iter().map(|letter| block_hash(*letter))).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Store {
        worker: u64,
        tier: Tier,
        path: Path,
        from: usize,
    },
    Remove {
        worker: u64,
        tier: Tier,
        picks: Vec<prop::sample::Index>,
    },
    /// A whole path, as one event, from its end or from its beginning.
    RemovePath {
        worker: u64,
        tier: Tier,
        path: Path,
        backwards: bool,
    },
    Clear {
        worker: u64,
        tier: Option<Tier>,
    },
    Forget {
        worker: u64,
    },
    Restore,
}

fn tier() -> impl Strategy<Value = Tier> {
    prop_oneof![6 => Just(Tier::Device), 1 => Just(Tier::Host), 1 => Just(Tier::Disk)]
}

fn path() -> impl Strategy<Value = Path> {
    prop::collection::vec(prop_oneof![5 => Just(0_u8), 2 => Just(1_u8), 1 => Just(2_u8)], 1..14)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..WORKERS, tier(), path(), 0..8_usize)
            .prop_map(|(worker, tier, path, from)| Step::Store { worker, tier, path, from }),
        6 => (0..WORKERS, tier(), prop::collection::vec(any::<prop::sample::Index>(), 1..4))
            .prop_map(|(worker, tier, picks)| Step::Remove { worker, tier, picks }),
        4 => (0..WORKERS, tier(), path(), any::<bool>())
            .prop_map(|(worker, tier, path, backwards)| Step::RemovePath { worker, tier, path, backwards }),
        1 => (0..WORKERS, prop::option::of(tier())).prop_map(|(worker, tier)| Step::Clear { worker, tier }),
        1 => (0..WORKERS).prop_map(|worker| Step::Forget { worker }),
        1 => Just(Step::Restore),
    ]
}

#[derive(Default)]
struct Naive {
    held: BTreeMap<(u64, Tier, EngineBlockId), Path>,
}

impl Naive {
    fn holds(&self, worker: u64, tier: Tier, path: &[u8]) -> bool {
        self.held.contains_key(&(worker, tier, name(worker, path)))
    }

    fn run(&self, worker: u64, tier: Tier, prompt: &[u8], from: usize) -> usize {
        (from..prompt.len()).take_while(|at| self.holds(worker, tier, &prompt[..=*at])).count() + from
    }

    fn overlap(&self, worker: u64, prompt: &[u8]) -> Held {
        let device = self.run(worker, Tier::Device, prompt, 0);
        let host = self.run(worker, Tier::Host, prompt, device);
        let disk = self.run(worker, Tier::Disk, prompt, host);
        Held { device: device as u32, host: host as u32, disk: disk as u32, predicted: 0 }
    }
}

fn config() -> IndexConfig {
    IndexConfig { shards: 4, ..IndexConfig::default() }
}

fn apply(index: &mut Index, naive: &mut Naive, step: &Step) {
    match step {
        Step::Store { worker: n, tier, path, from } => {
            let from = *from % path.len();
            let known = from == 0 || Tier::ALL.iter().any(|tier| naive.holds(*n, *tier, &path[..from]));
            let blocks = (from..path.len())
                .map(|at| StoredBlock { id: name(*n, &path[..=at]), hash: block_hash(path[at]) })
                .collect();
            let parent = (from > 0).then(|| name(*n, &path[..from]));
            let event = KvEvent::Stored { tier: *tier, parent, blocks };
            let applied = index.apply(worker(*n), &event, Tick(1)).unwrap();
            let mut new = 0;
            if known {
                for at in from..path.len() {
                    let key = (*n, *tier, name(*n, &path[..=at]));
                    new += usize::from(naive.held.insert(key, path[..=at].to_vec()).is_none());
                }
            }
            assert_eq!((applied.stored, applied.orphaned > 0), (new, !known));
        }
        Step::Remove { worker: n, tier, picks } => {
            let mine: Vec<_> =
                naive.held.keys().filter(|key| key.0 == *n && key.1 == *tier).map(|key| key.2).collect();
            let mut ids: Vec<_> =
                picks.iter().filter(|_| !mine.is_empty()).map(|pick| *pick.get(&mine)).collect();
            ids.push(EngineBlockId::from(12345_u64));
            remove(index, naive, *n, *tier, ids);
        }
        Step::RemovePath { worker: n, tier, path, backwards } => {
            let mut ids: Vec<_> = (0..path.len()).map(|at| name(*n, &path[..=at])).collect();
            if *backwards {
                ids.reverse();
            }
            remove(index, naive, *n, *tier, ids);
        }
        Step::Clear { worker: n, tier } => {
            let _ = index.apply(worker(*n), &KvEvent::Cleared { tier: *tier }, Tick(1)).unwrap();
            naive.held.retain(|key, _| key.0 != *n || tier.is_some_and(|tier| key.1 != tier));
        }
        Step::Forget { worker: n } => {
            index.forget(worker(*n));
            naive.held.retain(|key, _| key.0 != *n);
        }
        Step::Restore => {
            let restored = Index::restore(config(), &index.snapshot(), Tick(9)).unwrap();
            let (a, b) = (index.stats(), restored.stats());
            assert_eq!((a.nodes, a.distinct_blocks), (b.nodes, b.distinct_blocks));
            *index = restored;
        }
    }
}

fn remove(index: &Index, naive: &mut Naive, n: u64, tier: Tier, ids: Vec<EngineBlockId>) {
    let gone = ids.iter().filter(|id| naive.held.remove(&(n, tier, **id)).is_some()).count();
    let unknown = ids.len() - gone;
    let applied = index.apply(worker(n), &KvEvent::Removed { tier, ids }, Tick(1)).unwrap();
    assert_eq!((applied.removed, applied.unknown), (gone, unknown));
}

fn agree(index: &Index, naive: &Naive, prompt: &[u8]) {
    let overlap = index.overlap(&sequence(prompt), Tick(1));
    for n in 0..WORKERS {
        assert_eq!(overlap.of(worker(n)), naive.overlap(n, prompt), "worker {n}, prompt {prompt:?}");
    }
}

/// What the index says everyone holds is what the naive one says.
fn same_blocks(index: &Index, naive: &Naive) {
    let mut expected: HashMap<(WorkerId, Tier), usize> = HashMap::new();
    naive.held.keys().for_each(|key| *expected.entry((worker(key.0), key.1)).or_default() += 1);
    for stats in index.stats().workers {
        for (tier, blocks) in
            Tier::ALL.iter().zip([stats.device_blocks, stats.host_blocks, stats.disk_blocks])
        {
            assert_eq!(blocks, expected.remove(&(stats.worker, *tier)).unwrap_or(0));
        }
    }
    assert!(expected.is_empty());
}

/// What is shown of the tree is what everyone holds, node by node, and whole from the roots down.
fn same_outline(index: &Index, naive: &Naive) {
    let whole = index.outline(usize::MAX, usize::MAX).unwrap();
    assert_eq!((whole.nodes.len(), whole.left_out), (index.stats().nodes, 0));
    let mut held: HashMap<WorkerId, u64> = HashMap::new();
    for (at, node) in whole.nodes.iter().enumerate() {
        match node.parent {
            Some(parent) => {
                let above = &whole.nodes[parent];
                assert!(parent < at && above.held_below >= node.held_below);
                assert_eq!(node.start, above.start + above.blocks);
            }
            None => assert_eq!(node.start, 0),
        }
        for (worker, blocks) in &node.holders {
            assert!((1..=node.blocks).contains(blocks));
            *held.entry(*worker).or_default() += u64::from(*blocks);
        }
    }
    for n in 0..WORKERS {
        let expected = naive.held.keys().filter(|key| key.0 == n && key.1 == Tier::Device).count();
        assert_eq!(held.get(&worker(n)).copied().unwrap_or(0), expected as u64);
    }
    let below: u64 =
        whole.nodes.iter().filter(|node| node.parent.is_none()).map(|node| node.held_below).sum();
    assert_eq!(below, held.values().sum::<u64>());
    let few = index.outline(3, usize::MAX).unwrap();
    assert_eq!(few.nodes, whole.nodes[..whole.nodes.len().min(3)]);
    assert_eq!(few.nodes.len() + few.left_out, whole.nodes.len());
    assert_eq!(index.outline(3, 0).is_none(), !whole.nodes.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn the_index_and_a_naive_map_agree(steps in prop::collection::vec(step(), 1..60), prompts in prop::collection::vec(path(), 4)) {
        let mut index = Index::new(config());
        let mut naive = Naive::default();
        let empty = index.bytes();
        for step in &steps {
            apply(&mut index, &mut naive, step);
            #[cfg(debug_assertions)]
            index.check();
            prompts.iter().for_each(|prompt| agree(&index, &naive, prompt));
            if let Step::Store { path, .. } | Step::RemovePath { path, .. } = step {
                agree(&index, &naive, path);
            }
        }
        same_blocks(&index, &naive);
        same_outline(&index, &naive);

        // Removed one by one, in no particular order, until nothing is left and nothing is kept.
        let nodes = index.stats().nodes;
        let held: Vec<_> = naive.held.keys().copied().collect();
        for (n, tier, id) in held {
            remove(&index, &mut naive, n, tier, vec![id]);
        }
        let stats = index.stats();
        prop_assert_eq!((stats.nodes, stats.distinct_blocks), (0, 0), "from {} nodes", nodes);
        stats.workers.iter().for_each(|stats| { index.forget(stats.worker); });
        prop_assert_eq!(index.bytes(), empty);
    }

    #[test]
    fn what_comes_and_goes_leaves_the_tree_as_it_was(
        before in prop::collection::vec((0..2_u64, path()), 1..8),
        between in prop::collection::vec((2..WORKERS, path()), 1..12),
    ) {
        let mut index = Index::new(config());
        let mut naive = Naive::default();
        let store = |(worker, path): &(u64, Path)| Step::Store { worker: *worker, tier: Tier::Device, path: path.clone(), from: 0 };
        for held in &before {
            apply(&mut index, &mut naive, &store(held));
        }
        let shape = |index: &Index| (index.stats().nodes, index.stats().distinct_blocks);
        let was = shape(&index);
        for held in &between {
            apply(&mut index, &mut naive, &store(held));
        }
        for (worker, path) in &between {
            let gone = Step::RemovePath { worker: *worker, tier: Tier::Device, path: path.clone(), backwards: true };
            apply(&mut index, &mut naive, &gone);
        }
        prop_assert_eq!(shape(&index), was);
    }
}
