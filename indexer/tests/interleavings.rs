//! Small scenarios under a scheduler that explores interleavings of every lock and atomic.
//!
//! Run with `cargo test -p kvlane-indexer --features shuttle --test interleavings`. What a lookup may answer
//! at each moment is written out; anything else, a deadlock or a broken invariant fails the schedule.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use kvlane_indexer::{
    BlockHash, EngineBlockId, Index, IndexConfig, KvEvent, SequenceHash, StoredBlock, Tick, Tier, WorkerId,
};
use shuttle::thread;

const A: WorkerId = WorkerId::new(1, 0);
const B: WorkerId = WorkerId::new(2, 0);
const C: WorkerId = WorkerId::new(3, 0);

fn id(path: &str) -> EngineBlockId {
    EngineBlockId::from(path.as_bytes())
}

fn stored(parent: &str, blocks: &str) -> KvEvent {
    let path = format!("{parent}{blocks}");
    let block =
        |at: usize| StoredBlock { id: id(&path[..=at]), hash: BlockHash(u64::from(path.as_bytes()[at])) };
    let blocks = (parent.len()..path.len()).map(block).collect();
    KvEvent::Stored { tier: Tier::Device, parent: (!parent.is_empty()).then(|| id(parent)), blocks }
}

fn removed(paths: &[&str]) -> KvEvent {
    KvEvent::Removed { tier: Tier::Device, ids: paths.iter().map(|path| id(path)).collect() }
}

fn hashes(path: &str) -> Vec<SequenceHash> {
    SequenceHash::chain(None, path.bytes().map(|byte| BlockHash(u64::from(byte)))).collect()
}

fn index() -> Arc<Index> {
    Arc::new(Index::new(IndexConfig { shards: 4, ..IndexConfig::default() }))
}

fn say(index: &Index, worker: WorkerId, event: &KvEvent) {
    let _ = index.apply(worker, event, Tick(1)).unwrap();
}

fn depth(index: &Index, worker: WorkerId, prompt: &str) -> u32 {
    index.overlap(&hashes(prompt), Tick(1)).of(worker).device
}

fn explore(scenario: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(scenario.clone(), 3000);
    shuttle::check_pct(scenario, 1500, 3);
}

/// A worker loses the first block of a path and gains one at its end. It never holds all of it.
#[test]
fn a_lookup_never_joins_two_moments() {
    explore(|| {
        let index = index();
        say(&index, A, &stored("", "abc"));
        // Another worker's branches keep the path in several nodes, in several shards.
        say(&index, B, &stored("", "ax"));
        say(&index, B, &stored("", "aby"));
        let writer = {
            let index = Arc::clone(&index);
            thread::spawn(move || {
                say(&index, A, &removed(&["a"]));
                say(&index, A, &stored("abc", "d"));
            })
        };
        let seen = depth(&index, A, "abcd");
        assert!([3, 0].contains(&seen), "3 before, 0 after, never {seen}");
        writer.join().unwrap();
        assert_eq!(depth(&index, A, "abcd"), 0);
        index.check();
    });
}

/// One worker's path is cut and joined again by another's coming and going; its own depth never changes.
#[test]
fn cuts_and_joins_are_not_seen() {
    explore(|| {
        let index = index();
        say(&index, A, &stored("", "abcd"));
        let writer = {
            let index = Arc::clone(&index);
            thread::spawn(move || {
                say(&index, B, &stored("", "abxy"));
                say(&index, B, &removed(&["abxy", "abx", "ab", "a"]));
            })
        };
        for _ in 0..2 {
            let overlap = index.overlap(&hashes("abcd"), Tick(1));
            assert_eq!(overlap.of(A).device, 4);
            assert!(overlap.of(B).device <= 2);
        }
        writer.join().unwrap();
        assert_eq!(index.stats().nodes, 1);
        index.check();
    });
}

/// A slot changes hands while lookups run; nobody is credited with what its predecessor held.
#[test]
fn a_recycled_slot_brings_nothing_along() {
    explore(|| {
        let index = index();
        say(&index, A, &stored("", "abc"));
        say(&index, B, &stored("", "ab"));
        let writer = {
            let index = Arc::clone(&index);
            thread::spawn(move || {
                assert!(index.forget(A));
                say(&index, C, &stored("", "a"));
            })
        };
        let overlap = index.overlap(&hashes("abc"), Tick(1));
        assert!(
            [0, 3].contains(&overlap.of(A).device),
            "all of it or, from the moment it is forgotten, nothing"
        );
        assert_eq!(overlap.of(B).device, 2);
        assert!(overlap.of(C).device <= 1);
        writer.join().unwrap();
        index.check();
    });
}

/// Two feeds, a prediction and a budget of nothing to spare: no order of locks blocks for ever.
#[test]
fn writers_do_not_block_each_other_for_ever() {
    explore(|| {
        let max_bytes = Index::new(IndexConfig { shards: 1, ..IndexConfig::default() }).bytes() + 2600;
        let index = Arc::new(Index::new(IndexConfig { shards: 1, max_bytes, ..IndexConfig::default() }));
        let feed = |worker: WorkerId, path: &'static str| {
            let index = Arc::clone(&index);
            thread::spawn(move || {
                say(&index, worker, &stored("", path));
                index.predict(worker, &hashes(path), Tick(1));
                say(&index, worker, &removed(&[path]));
            })
        };
        let feeds = [feed(A, "abcdefghijklmnop"), feed(B, "abcdefghxyz"), feed(C, "qrstu")];
        let _ = index.snapshot();
        let _ = index.stats();
        feeds.into_iter().for_each(|feed| feed.join().unwrap());
        index.check();
        assert!(index.bytes() <= max_bytes);
    });
}
