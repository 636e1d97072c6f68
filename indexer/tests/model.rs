//! Random histories, applied to the index and to the most naive thing that could answer the same question.
//!
//! Both must agree on every worker and every prompt after every event, the index must be in its form, and a snapshot
//! taken anywhere must restore to an index that goes on agreeing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod naive;

use std::collections::HashMap;

use kvlane_indexer::{Index, Tier, WorkerId};
use proptest::prelude::*;

use self::naive::{Naive, Path, Step, WORKERS, agree, apply, config, remove, worker};

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
        6 => (0..WORKERS, tier(), prop::collection::vec(any::<usize>(), 1..4))
            .prop_map(|(worker, tier, picks)| Step::Remove { worker, tier, picks }),
        4 => (0..WORKERS, tier(), path(), any::<bool>())
            .prop_map(|(worker, tier, path, backwards)| Step::RemovePath { worker, tier, path, backwards }),
        1 => (0..WORKERS, prop::option::of(tier())).prop_map(|(worker, tier)| Step::Clear { worker, tier }),
        1 => (0..WORKERS).prop_map(|worker| Step::Forget { worker }),
        1 => Just(Step::Restore),
    ]
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
        let mut naive = Naive::new(config());
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
        let mut naive = Naive::new(config());
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
