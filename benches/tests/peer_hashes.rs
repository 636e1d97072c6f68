//! Our hashes beside the peer's own, on random prompts: block sizes, adapters, salts, EAGLE windows, media.
//!
//! Needs the feature `peer`; `make bench-peer` runs it before measuring. The fixed vectors that every test
//! run checks are in the indexer.

#![cfg(feature = "peer")]

use dynamo_kv_router::protocols::{
    BlockExtraInfo, BlockHashOptions, BlockMmObjectInfo, compute_block_hash_for_seq,
    compute_seq_hash_for_block,
};
use fixtures::random::Random;
use kvlane_indexer::{BlockHasher, BlockSize, Namespace};

#[test]
fn blocks_and_sequences_hash_alike() {
    let mut random = Random::new(3);
    let names = [None, Some(""), Some("my-adapter"), Some("tenant-\u{e9}")];
    for case in 0..2000 {
        let tokens: Vec<u32> = (0..random.below(700)).map(|_| random.below(150_000) as u32).collect();
        let size = [1, 4, 16, 32, 61, 64, 128][random.below(7) as usize];
        let (lora_name, cache_salt) = (names[random.below(4) as usize], names[random.below(4) as usize]);
        let eagle = random.below(3) == 0;
        let block_size = BlockSize::new(size).expect("no size is zero");
        let mut hasher = BlockHasher::new(block_size, Namespace { lora_name, cache_salt });
        if eagle {
            hasher = hasher.with_eagle_window();
        }
        let options = BlockHashOptions {
            lora_name,
            cache_namespace: cache_salt,
            is_eagle: Some(eagle),
            block_mm_infos: None,
        };
        let theirs = compute_block_hash_for_seq(&tokens, size, options);
        assert!(
            hasher.blocks(&tokens).map(|hash| hash.0).eq(theirs.iter().map(|hash| hash.0)),
            "case {case}"
        );
        let sequence = compute_seq_hash_for_block(&theirs);
        assert!(hasher.sequence(&tokens).iter().map(|hash| hash.0).eq(sequence), "case {case}");
    }
}

#[test]
fn blocks_that_show_media_hash_alike() {
    let tokens: Vec<u32> = (0..32).collect();
    let mut media = [77, 5, u64::MAX];
    let objects = media.map(|mm_hash| BlockMmObjectInfo { mm_hash, offsets: vec![(0, 4)] });
    let infos = [Some(BlockExtraInfo { mm_objects: objects.to_vec() }), None];
    let options = BlockHashOptions { block_mm_infos: Some(&infos), ..BlockHashOptions::default() };
    let theirs = compute_block_hash_for_seq(&tokens, 16, options);
    let hasher = BlockHasher::new(BlockSize::new(16).expect("not zero"), Namespace::default());
    assert_eq!(hasher.block_with_media(&tokens[..16], &mut media).0, theirs[0].0);
    assert_eq!(hasher.blocks(&tokens).nth(1).map(|hash| hash.0), Some(theirs[1].0));
}
