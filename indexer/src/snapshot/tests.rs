//! What a snapshot carries, and what is refused. That a restored index behaves the same is in `tests/model.rs`.

use super::*;
use crate::block::BlockHash;
use crate::event::{KvEvent, StoredBlock};

const WORKER: WorkerId = WorkerId::new(9, 2);

fn sample() -> Index {
    let index = Index::new(IndexConfig::default());
    for (tier, parent, blocks) in
        [(Tier::Device, None, 1..20), (Tier::Device, Some(5_u64), 30..40), (Tier::Host, Some(12), 13..15)]
    {
        let parent = parent.map(EngineBlockId::from);
        let blocks =
            blocks.map(|n: u64| StoredBlock { id: EngineBlockId::from(n), hash: BlockHash(n) }).collect();
        let _ = index.apply(WORKER, &KvEvent::Stored { tier, parent, blocks }, Tick(3)).unwrap();
    }
    let _ = index.apply(WorkerId::new(1, 0), &KvEvent::Cleared { tier: None }, Tick(3)).unwrap();
    index
}

fn refused(bytes: &[u8]) -> SnapshotError {
    Index::restore(IndexConfig::default(), bytes, Tick(9)).unwrap_err()
}

/// The bytes with one change and a checksum that fits it.
fn forged(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = sample().snapshot();
    bytes.truncate(bytes.len() - 8);
    change(&mut bytes);
    let checksum = xxh3_64(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

#[test]
fn a_snapshot_of_a_restored_index_is_the_same_bytes() {
    let bytes = sample().snapshot();
    let restored = Index::restore(IndexConfig::default(), &bytes, Tick(9)).unwrap();
    restored.check();
    assert_eq!(restored.snapshot(), bytes);
    let blocks = |index: &Index| {
        index.stats().workers.iter().map(|w| (w.worker, w.device_blocks, w.host_blocks)).collect::<Vec<_>>()
    };
    assert_eq!((blocks(&restored), restored.stats().nodes), (blocks(&sample()), sample().stats().nodes));
    // 29 distinct blocks, 31 held ones, and a little per node and run.
    assert!(bytes.len() < (29 + 31) * 8 + 200, "{} bytes", bytes.len());
}

#[test]
fn an_empty_index_has_a_snapshot_too() {
    let bytes = Index::new(IndexConfig::default()).snapshot();
    let restored = Index::restore(IndexConfig::default(), &bytes, Tick(9)).unwrap();
    assert_eq!((restored.stats().nodes, bytes.len()), (0, 24));
}

#[test]
fn anything_but_a_whole_snapshot_is_refused() {
    let bytes = sample().snapshot();
    assert_eq!(refused(b""), SnapshotError::NotASnapshot);
    assert_eq!(refused(b"JSON{}"), SnapshotError::NotASnapshot);
    assert_eq!(refused(b"KVLX\x01"), SnapshotError::Truncated { field: "version" });
    for end in 8..bytes.len() {
        assert!(matches!(refused(&bytes[..end]), SnapshotError::Checksum | SnapshotError::Truncated { .. }));
    }
    for at in 8..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        assert_eq!(refused(&changed), SnapshotError::Checksum);
    }
    assert_eq!(refused(&forged(|bytes| bytes[4] = 7)), SnapshotError::Version { found: 7 });
    assert_eq!(refused(&forged(|bytes| bytes[4] = 7)).to_string(), "snapshot has version 7, expected 1");
}

#[test]
fn a_snapshot_that_contradicts_itself_is_refused_whatever_its_checksum() {
    // Every byte changed in turn: refused, or a valid index; never a panic, never a contradiction.
    let len = sample().snapshot().len() - 8;
    let mut refusals = 0;
    for at in 8..len {
        for flip in [0x01, 0x80, 0xFF] {
            match Index::restore(IndexConfig::default(), &forged(|bytes| bytes[at] ^= flip), Tick(9)) {
                Ok(index) => drop(index.check()),
                Err(_) => refusals += 1,
            }
        }
    }
    assert!(refusals > 100);
    let more = refused(&forged(|bytes| bytes.extend_from_slice(b"more")));
    assert!(matches!(more, SnapshotError::Invalid { field: "bytes after the last worker", value: 4, .. }));
    let config = IndexConfig { max_workers: 1, ..IndexConfig::default() };
    let many = Index::restore(config, &sample().snapshot(), Tick(9)).unwrap_err();
    assert_eq!(many, SnapshotError::TooManyWorkers { workers: 2, max: 1 });
}

/// Only a hash that was made up outside can: the first block's hash is whatever an engine says it is.
#[test]
fn a_hash_that_stands_at_two_depths_is_two_blocks() {
    let index = Index::new(IndexConfig::default());
    let path: Vec<_> = SequenceHash::chain(None, [BlockHash(1), BlockHash(2)]).collect();
    for (id, hashes) in [(1_u64, vec![BlockHash(1), BlockHash(2)]), (5, vec![BlockHash(path[1].0)])] {
        let blocks = (id..).zip(hashes).map(|(id, hash)| StoredBlock { id: id.into(), hash }).collect();
        let stored = KvEvent::Stored { tier: Tier::Device, parent: None, blocks };
        let _ = index.apply(WORKER, &stored, Tick(3)).unwrap();
    }
    let restored = Index::restore(IndexConfig::default(), &index.snapshot(), Tick(9)).unwrap();
    for index in [&index, &restored] {
        index.check();
        assert_eq!(index.stats().distinct_blocks, 3);
        assert_eq!(index.overlap(&path, Tick(9)).of(WORKER).device, 2);
        assert_eq!(index.overlap(&path[1..], Tick(9)).of(WORKER).device, 1);
    }
}
