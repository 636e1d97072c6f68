//! Holding the byte budget.

use super::*;

fn block(conversation: u64, at: u64) -> StoredBlock {
    let name = conversation << 32 | at;
    StoredBlock { id: EngineBlockId::from(name.wrapping_mul(0x9E37_79B9_7F4A_7C15)), hash: BlockHash(name) }
}

fn conversation(n: u64, blocks: u64) -> KvEvent {
    let blocks = (0..blocks).map(|at| block(n, at)).collect();
    KvEvent::Stored { tier: Tier::Device, parent: None, blocks }
}

fn prompt(n: u64, blocks: u64) -> Vec<SequenceHash> {
    SequenceHash::chain(None, (0..blocks).map(|at| block(n, at).hash)).collect()
}

fn depth(index: &Index, worker: WorkerId, n: u64, tick: u32) -> u32 {
    index.overlap(&prompt(n, 64), Tick(tick)).of(worker).device
}

#[test]
fn the_budget_is_held_and_the_coldest_paths_of_the_largest_holder_go() {
    let config = IndexConfig { max_bytes: 1 << 20, shards: 4, ..IndexConfig::default() };
    let index = Index::new(config);
    // A small, old worker; then a large one that keeps storing, with one old conversation kept warm by hits.
    for n in 0..10 {
        let _ = index.apply(B, &conversation(1_000_000 + n, 64), Tick(0)).unwrap();
    }
    for n in 0..2000 {
        let tick = n as u32 + 1;
        let _ = index.apply(A, &conversation(n, 64), Tick(tick)).unwrap();
        assert!(index.bytes() <= config.max_bytes, "{} bytes after {n} conversations", index.bytes());
        assert_eq!(depth(&index, A, 0, tick), 64, "hit at every tick, never cold");
    }
    index.check();
    let stats = index.stats();
    assert!(stats.forgotten_blocks_total > 64 * 1000);
    assert!(stats.bytes > config.max_bytes * 8 / 10, "no more is forgotten than needed: {}", stats.bytes);
    // The newest are there, the old are gone, the small worker lost nothing.
    assert_eq!((depth(&index, A, 1999, 2001), depth(&index, A, 1, 2001)), (64, 0));
    assert!((0..10).all(|n| depth(&index, B, 1_000_000 + n, 2001) == 64));
    // Removing what was forgotten is quiet.
    let ids = (0..64).map(|at| block(1, at).id).collect();
    let applied = index.apply(A, &KvEvent::Removed { tier: Tier::Device, ids }, Tick(2002)).unwrap();
    assert_eq!(applied, Applied { unknown: 64, ..Applied::default() });
    // And so is storing it again, with its whole path.
    let _ = index.apply(A, &conversation(1, 64), Tick(2002)).unwrap();
    assert_eq!(depth(&index, A, 1, 2002), 64);
}

#[test]
fn paths_are_forgotten_from_their_ends() {
    let config = IndexConfig { max_bytes: 150_000, shards: 4, ..IndexConfig::default() };
    let index = Index::new(config);
    // One endless prompt: everything is equally warm, so what is left is always its beginning.
    let _ = index.apply(A, &conversation(1, 64), Tick(1)).unwrap();
    for n in 2..200 {
        let blocks = (0..64).map(|at| block(n, at)).collect();
        let parent = Some(block(1, 63).id);
        let _ =
            index.apply(A, &KvEvent::Stored { tier: Tier::Device, parent, blocks }, Tick(n as u32)).unwrap();
    }
    index.check();
    assert!(index.stats().forgotten_blocks_total > 0);
    assert_eq!(depth(&index, A, 1, 200), 64, "what all paths share is as warm as the warmest");
}
