//! The index counts its own bytes; this counts them at the allocator and compares.
//!
//! One test alone in its process: the allocator's count is of everything.

#![allow(unsafe_code, reason = "an allocator is unsafe to write; this one only counts and passes on")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use kvlane_indexer::{
    BlockHash, EngineBlockId, Index, IndexConfig, KvEvent, SequenceHash, StoredBlock, Tick, Tier, WorkerId,
};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are the system allocator's conditions.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are the system allocator's conditions.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

fn mix(n: u64) -> u64 {
    let n = (n ^ n >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let n = (n ^ n >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ n >> 31
}

/// Conversations over a few documents: `turn` new blocks each time, forks at many depths.
fn store(conversation: u64, turn: u64) -> (WorkerId, KvEvent) {
    let worker = WorkerId::new(conversation % 7, 0);
    let owner = |at: u64| if at < 20 { conversation % 3 } else { conversation + 100 };
    let block = |at: u64| {
        let name = mix(owner(at) << 16 | at | worker.instance << 48);
        StoredBlock { id: EngineBlockId::from(name), hash: BlockHash(mix(owner(at) << 16 | at)) }
    };
    let from = if turn == 0 { 0 } else { 20 + turn * 5 };
    let parent = from.checked_sub(1).map(|at| block(at).id);
    let tier = if conversation.is_multiple_of(11) { Tier::Host } else { Tier::Device };
    (worker, KvEvent::Stored { tier, parent, blocks: (from..20 + (turn + 1) * 5).map(block).collect() })
}

fn agrees(index: &Index, before: usize, when: &str) {
    let counted = LIVE.load(Ordering::Relaxed) - before;
    let said = index.bytes();
    let slack = counted / 50 + 8 * 1024;
    assert!(said.abs_diff(counted) <= slack, "{when}: the index says {said}, the allocator {counted}");
}

#[test]
fn the_index_knows_its_size_and_gives_everything_back() {
    let before = LIVE.load(Ordering::Relaxed);
    let index = Index::new(IndexConfig::default());
    let empty = index.bytes();
    agrees(&index, before, "empty");
    for turn in 0..6 {
        for conversation in 0..3000 {
            let (worker, event) = store(conversation, turn);
            let _ = index.apply(worker, &event, Tick(turn as u32)).unwrap();
        }
        agrees(&index, before, "growing");
    }
    let full = index.bytes();
    assert!(index.stats().distinct_blocks > 80_000 && full > empty + 1_000_000);

    // Names asked for out of order are hashed in the end; that is counted as well.
    for conversation in 0..400 {
        let (worker, event) = store(conversation, 0);
        let KvEvent::Stored { blocks, .. } = event else { unreachable!() };
        blocks.iter().step_by(3).for_each(|block| assert!(index.holds(worker, block.id)));
    }
    agrees(&index, before, "hashed");

    // Each conversation's blocks, the first turns first: holes everywhere before the ends go.
    for turn in 0..6 {
        for conversation in (0..3000).rev() {
            let (worker, event) = store(conversation, turn);
            let KvEvent::Stored { tier, blocks, .. } = event else { unreachable!() };
            let ids = blocks.iter().skip(if turn == 0 { 20 } else { 0 }).map(|block| block.id).collect();
            let _ = index.apply(worker, &KvEvent::Removed { tier, ids }, Tick(9)).unwrap();
        }
        agrees(&index, before, "shrinking");
    }
    let stats = index.stats();
    assert_eq!(stats.distinct_blocks, 60, "three documents of twenty blocks are left");
    assert!(index.bytes() < empty + full / 20, "{} bytes for 60 blocks, {empty} for none", index.bytes());
    for worker in stats.workers {
        assert!(index.forget(worker.worker));
    }
    assert_eq!((index.stats().nodes, index.bytes()), (0, empty));
    agrees(&index, before, "empty again");
    let prompt = [SequenceHash(1)];
    assert_eq!(index.overlap(&prompt, Tick(10)).iter().count(), 0);
    drop(index);
    assert!(LIVE.load(Ordering::Relaxed).abs_diff(before) < 64 * 1024);
}
