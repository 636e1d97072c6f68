//! Vectors computed with Dynamo's published crate, and the promises of [`BlockHasher`].

use super::*;

fn size(tokens: u32) -> BlockSize {
    BlockSize::new(tokens).unwrap()
}

fn check(lora_name: Option<&str>, cache_salt: Option<&str>, blocks: [u64; 3], sequence: [u64; 3]) {
    let tokens: Vec<TokenId> = (0..48).collect();
    let hasher = BlockHasher::new(size(16), Namespace { lora_name, cache_salt });
    assert_eq!(hasher.blocks(&tokens).collect::<Vec<_>>(), blocks.map(BlockHash));
    assert_eq!(hasher.sequence(&tokens), sequence.map(SequenceHash));
}

#[test]
fn plain_blocks_hash_as_dynamo_hashes_them() {
    let blocks = [15310707395893867146, 15292316782987903195, 5532946206955930018];
    let sequence = [15310707395893867146, 13769157705258532664, 11879827756109914528];
    check(None, None, blocks, sequence);
    check(Some(""), Some(""), blocks, sequence);
}

#[test]
fn the_adapter_name_is_folded_in() {
    check(
        Some("my-adapter"),
        None,
        [10414274580423718356, 12183817081113634636, 15626132601205453030],
        [10414274580423718356, 2293438083904033010, 2976083281546595279],
    );
}

#[test]
fn the_cache_salt_is_folded_in() {
    check(
        None,
        Some("tenant-a"),
        [2130915519417463704, 14342547135021016991, 11634673069974245442],
        [2130915519417463704, 13676355973429745432, 5254782175510064001],
    );
}

#[test]
fn adapter_and_salt_are_folded_in_together() {
    check(
        Some("my-adapter"),
        Some("tenant-a"),
        [16044903977306152657, 4837282910136119525, 15104101943722816282],
        [16044903977306152657, 6802720712382001250, 6648253707388841598],
    );
}

#[test]
fn a_partial_last_block_has_no_hash() {
    let tokens: Vec<TokenId> = (0..40).map(|i| 128_000 + 7 * i).collect();
    let hasher = BlockHasher::new(size(32), Namespace::default());
    assert_eq!(hasher.blocks(&tokens).collect::<Vec<_>>(), [BlockHash(5999081047093769107)]);
    assert_eq!(hasher.blocks(&tokens[..31]).len(), 0);
    assert_eq!(hasher.sequence(&[]), []);
}

#[test]
fn a_longer_prompt_keeps_the_hashes_of_its_prefix() {
    let tokens: Vec<TokenId> = (0..1000).map(|i| i * 31 % 977).collect();
    for hasher in [
        BlockHasher::new(size(16), Namespace::default()),
        BlockHasher::new(size(16), Namespace { lora_name: Some("a"), cache_salt: None }).with_eagle_window(),
    ] {
        let whole = hasher.sequence(&tokens);
        let mut grown = Vec::new();
        for end in [0, 5, 16, 17, 33, 512, 999, 1000] {
            hasher.extend(&tokens[..end], &mut grown);
            assert_eq!(grown, whole[..hasher.block_count(end)]);
        }
        // A shorter prompt than what is hashed already changes nothing.
        hasher.extend(&tokens[..64], &mut grown);
        assert_eq!(grown, whole);
    }
}

#[test]
fn an_eagle_window_sees_one_token_of_the_next_block() {
    let hasher = BlockHasher::new(size(16), Namespace::default()).with_eagle_window();
    let mut tokens: Vec<TokenId> = (0..33).collect();
    assert_eq!((hasher.block_count(16), hasher.block_count(17), hasher.block_count(33)), (0, 1, 2));
    let before: Vec<_> = hasher.blocks(&tokens).collect();
    tokens[16] = 999;
    let after: Vec<_> = hasher.blocks(&tokens).collect();
    assert!(before[0] != after[0] && before[1] != after[1]);
}

#[test]
fn media_tokens_stay_clear_of_the_vocabulary() {
    assert_eq!(media_token(0), 1_000_000);
    assert_eq!(media_token(u64::MAX), 1_000_000 + (1 << 30) - 1);
    assert_eq!(media_token(1 << 30), 1_000_000);
}

#[test]
fn media_hashes_count_whatever_their_order() {
    let hasher = BlockHasher::new(size(4), Namespace::default());
    let tokens = [1, 2, 3, 4];
    let both = hasher.block_with_media(&tokens, &mut [9, 5]);
    assert_eq!(both, hasher.block_with_media(&tokens, &mut [5, 9]));
    assert_ne!(both, hasher.block_with_media(&tokens, &mut [5]));
    assert_eq!(Some(hasher.block_with_media(&tokens, &mut [])), hasher.blocks(&tokens).next());
}
