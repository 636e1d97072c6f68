use proptest::prelude::*;

use super::*;
use crate::vllm::wire::{Encoder, Naming, OutEvent, Spelling};

fn stored(batch: &Batch) -> &Stored {
    match batch.events.as_slice() {
        [Event::Stored(stored)] => stored,
        other => panic!("{other:?}"),
    }
}

/// msgpack by hand.
fn text(text: &str) -> Vec<u8> {
    [&[0xa0 | text.len() as u8], text.as_bytes()].concat()
}

fn array(items: &[Vec<u8>]) -> Vec<u8> {
    [vec![0x90 | items.len() as u8], items.concat()].concat()
}

fn batch_of(event: Vec<u8>) -> Vec<u8> {
    array(&[vec![0x01], array(&[event]), vec![0xc0]])
}

fn fields(items: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let pairs = items.iter().flat_map(|(key, value)| [text(key), value.clone()].concat());
    std::iter::once(0x80 | items.len() as u8).chain(pairs).collect()
}

#[test]
fn fields_may_come_in_any_order_and_unknown_ones_are_passed_over() {
    let event = fields(&[
        ("block_size", vec![2]),
        ("future", array(&[fields(&[("deep", vec![0xc3])]), vec![0xca, 0, 0, 0, 0]])),
        ("extra_keys", array(&[array(&[text("ad"), text("salt")]), vec![0xc0]])),
        ("token_ids", array(&[vec![1], vec![2], vec![3], vec![4]])),
        ("lora_name", text("ad")),
        ("block_hashes", array(&[vec![7], vec![8]])),
        ("locality", text("LOCAL")),
        ("type", text("BlockStored")),
    ]);
    let batch = batch(&batch_of(event)).unwrap();
    let stored = stored(&batch);
    assert_eq!((stored.tokens.as_slice(), stored.block_tokens), ([1, 2, 3, 4].as_slice(), 2));
    assert_eq!(stored.extra, Extra { cache_salt: Some("salt".to_owned()), media_from: None });
    assert_eq!((batch.rank, stored.place.tier()), (None, Some(Tier::Device)));
}

#[test]
fn blocks_elsewhere_and_media_are_told_apart() {
    let event = |extra: &[(&str, Vec<u8>)]| {
        let known = [
            ("type", text("BlockStored")),
            ("block_hashes", array(&[vec![7]])),
            ("token_ids", array(&[vec![1]])),
            ("block_size", vec![1]),
        ];
        batch(&batch_of(fields(&[&known, extra].concat()))).unwrap()
    };
    for (field, value) in [("locality", "REMOTE"), ("ownership", "kvcr"), ("medium", "OBJ")] {
        assert_eq!(stored(&event(&[(field, text(value))])).place.tier(), None, "{field}");
    }
    assert_eq!(stored(&event(&[("medium", text("CPU"))])).place.tier(), Some(Tier::Host));
    let image = array(&[array(&[array(&[text("img"), vec![0]])])]);
    assert_eq!(stored(&event(&[("extra_keys", image)])).extra.media_from, Some(0));
    let digest = [vec![0xd9, 64], vec![b'a'; 64]].concat();
    assert_eq!(stored(&event(&[("extra_keys", array(&[array(&[digest])]))])).extra.media_from, Some(0));
}

#[test]
fn pairs_of_tokens_become_a_run() {
    let pair = |a: u8, b: u8| array(&[vec![a], vec![b]]);
    let tokens = array(&[pair(1, 2), pair(2, 3)]);
    let event = array(&[text("BlockStored"), array(&[vec![9]]), vec![0xc0], tokens, vec![2]]);
    let batch = batch(&batch_of(event)).unwrap();
    assert_eq!((stored(&batch).tokens.as_slice(), stored(&batch).pairs), ([1, 2, 3].as_slice(), true));
}

#[test]
fn sglangs_metadata_is_not_an_adapter() {
    let nil = || vec![0xc0];
    let metadata = fields(&[("cache_salt", text("t"))]);
    let event = array(&[
        text("BlockStored"),
        array(&[vec![9]]),
        nil(),
        array(&[vec![1]]),
        vec![1],
        nil(),
        text("GPU"),
        metadata,
    ]);
    let batch = batch(&batch_of(event)).unwrap();
    assert_eq!(stored(&batch).extra.cache_salt.as_deref(), Some("t"));
    assert_eq!(stored(&batch).lora_name, None);
}

#[test]
fn unknown_kinds_are_counted_and_what_is_wrong_is_named() {
    assert_eq!(batch(&batch_of(fields(&[("type", text("BlockMoved"))]))).unwrap().unknown, 1);
    assert_eq!(batch(&batch_of(array(&[text("Ignored"), vec![1]]))).unwrap().unknown, 1);
    assert_eq!(batch(&batch_of(vec![0xc3])).unwrap().unknown, 1);
    for (bytes, error) in [
        (vec![0xc0], "batch is nil, expected an array"),
        (batch_of(fields(&[("type", text("BlockStored"))])), "BlockStored.block_hashes ends early"),
        (batch_of(array(&[text("BlockStored"), array(&[])])), "BlockStored ends early"),
        (batch_of(array(&[text("BlockRemoved"), vec![1]])), "block_hashes is an integer, expected an array"),
        (
            [batch_of(fields(&[("type", text("AllBlocksCleared"))])), vec![0]].concat(),
            "the end of the batch is out of range",
        ),
    ] {
        assert_eq!(batch(&bytes).unwrap_err().to_string(), error);
    }
}

proptest! {
    #[test]
    fn what_we_write_is_what_we_read(
        names in prop::collection::vec(any::<u64>(), 1..6), parent in any::<Option<u64>>(), salted in any::<bool>(),
        lora in any::<bool>(), arrays in any::<bool>(), digests in any::<bool>(), removed in any::<u64>(),
    ) {
        let spelling = if arrays { Spelling::Arrays } else { Spelling::Maps };
        let naming = if digests { Naming::Bytes } else { Naming::Ints };
        let tokens: Vec<u32> = (0..4 * names.len() as u32).map(|n| n.wrapping_mul(77_777_777)).collect();
        let salted = salted && parent.is_none();
        let events = [
            OutEvent::Stored {
                names: names.clone(),
                parent,
                tokens: &tokens,
                block_tokens: 4,
                lora_name: lora.then_some("ad1"),
                cache_salt: salted.then_some("tenant"),
                session_id: None,
            },
            OutEvent::Removed { name: removed },
        ];
        let bytes = Encoder { spelling, naming, data_parallel_rank: 3 }.batch(5.5, &events);
        let read = batch(&bytes).unwrap();
        prop_assert_eq!((read.seconds, read.rank, read.events.len()), (5.5, Some(3), 2));
        let Event::Stored(stored) = &read.events[0] else { panic!("{read:?}") };
        prop_assert_eq!((&stored.tokens, stored.block_tokens, stored.parent.is_some()), (&tokens, 4, parent.is_some()));
        prop_assert_eq!(stored.extra.cache_salt.as_deref(), salted.then_some("tenant"));
        prop_assert_eq!(stored.lora_name.as_deref(), lora.then_some("ad1"));
        prop_assert_eq!(stored.extra.media_from, None);
        if !digests {
            let expected: Vec<EngineBlockId> = names.iter().map(|name| (*name).into()).collect();
            prop_assert_eq!(&stored.names, &expected);
        }
    }

    #[test]
    fn no_bytes_bring_it_down(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = batch(&bytes);
    }
}
