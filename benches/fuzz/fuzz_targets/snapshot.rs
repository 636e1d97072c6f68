//! Snapshots of an index: refused, or an index that is right in itself and whose own snapshot says the same for ever.
#![no_main]

use kvlane_indexer::{Index, IndexConfig, Tick};
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::xxh3_64;

fn restored(snapshot: &[u8], max_bytes: usize) -> Option<Index> {
    let config = IndexConfig { shards: 4, max_workers: 64, max_bytes, ..IndexConfig::default() };
    let index = Index::restore(config, snapshot, Tick(9)).ok()?;
    index.check();
    Some(index)
}

fuzz_target!(|bytes: &[u8]| {
    assert!(restored(bytes, 1 << 30).is_none_or(|index| index.snapshot().len() <= bytes.len()));
    // No fuzzer guesses checksums.
    let mut bytes = bytes.to_vec();
    bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
    let Some(index) = restored(&bytes, 1 << 30) else { return };
    let first = index.snapshot();
    let second = restored(&first, 1 << 30).expect("its own snapshot").snapshot();
    assert_eq!(first, second);
    // With less room the same may be forgotten in part.
    let small = 8 << 10;
    let index = restored(&bytes, small).expect("the same snapshot");
    assert!(index.bytes() <= small || index.stats().distinct_blocks == 0, "{} bytes", index.bytes());
});
