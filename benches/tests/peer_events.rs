//! Our events as the peer's own types read them, and the peer's as we do.
//!
//! Needs the feature `peer`; `make bench-peer` runs it before measuring.

#![cfg(feature = "peer")]
#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

use dynamo_kv_router::protocols::{
    KvCacheEventData, ResidencyDomain, RouterEvent, StorageTier, WireResidencyDomain,
};
use fixtures::random::Random;
use kvlane_engine_adapters::dynamo::{decode_events, decode_json_event, encode_events};
use kvlane_indexer::{BlockHash, KvEvent, StoredBlock, Tier, WorkerId};

fn events(random: &mut Random) -> Vec<KvEvent> {
    let tiers = [Tier::Device, Tier::Host, Tier::Disk];
    (0..1 + random.below(6))
        .map(|_| {
            let tier = tiers[random.below(3) as usize];
            match random.below(8) {
                0 => KvEvent::Cleared { tier: None },
                1..4 => KvEvent::Removed {
                    tier,
                    ids: (0..random.below(9)).map(|_| random.next().into()).collect(),
                },
                _ => {
                    let block = |random: &mut Random| StoredBlock {
                        id: random.next().into(),
                        hash: BlockHash(random.next()),
                    };
                    let parent = (random.below(2) == 0).then(|| random.next().into());
                    KvEvent::Stored {
                        tier,
                        parent,
                        blocks: (0..random.below(9)).map(|_| block(random)).collect(),
                    }
                }
            }
        })
        .collect()
}

#[test]
fn both_sides_read_each_other() {
    let mut random = Random::new(11);
    for case in 0..2000_u64 {
        let worker = WorkerId::new(random.next() >> 11, random.below(8) as u32);
        let events = events(&mut random);
        let numbered: Vec<(u64, &KvEvent)> = (case..).zip(&events).take(events.len()).collect();
        let bytes = encode_events(worker, numbered.into_iter());

        let theirs: Vec<RouterEvent> = rmp_serde::from_slice(&bytes).unwrap();
        assert_eq!(theirs.len(), events.len());
        for (at, (theirs, ours)) in theirs.iter().zip(&events).enumerate() {
            assert_eq!((theirs.worker_id, theirs.event.dp_rank), (worker.instance, worker.dp_rank));
            assert_eq!(theirs.event.event_id, case + at as u64);
            assert_eq!(theirs.residency_domain, WireResidencyDomain::Known(ResidencyDomain::Worker));
            match (&theirs.event.data, ours) {
                (KvCacheEventData::Stored(data), KvEvent::Stored { tier, parent, blocks }) => {
                    let expected = match tier {
                        Tier::Device => StorageTier::Device,
                        Tier::Host => StorageTier::HostPinned,
                        Tier::Disk => StorageTier::Disk,
                    };
                    assert_eq!(theirs.storage_tier, expected);
                    assert_eq!(data.parent_hash.map(|hash| hash.0), parent.map(|id| id.to_u64()));
                    let found: Vec<(u64, u64)> =
                        data.blocks.iter().map(|block| (block.block_hash.0, block.tokens_hash.0)).collect();
                    let expected: Vec<(u64, u64)> =
                        blocks.iter().map(|block| (block.id.to_u64(), block.hash.0)).collect();
                    assert_eq!(found, expected);
                }
                (KvCacheEventData::Removed(data), KvEvent::Removed { ids, .. }) => {
                    let found: Vec<u64> = data.block_hashes.iter().map(|hash| hash.0).collect();
                    assert_eq!(found, ids.iter().map(|id| id.to_u64()).collect::<Vec<_>>());
                }
                (KvCacheEventData::Cleared, KvEvent::Cleared { .. }) => {}
                (theirs, ours) => panic!("{theirs:?} is not {ours:?}"),
            }
        }

        // And back: as a batch, as single events (up to 1.3), and as the JSON of 0.9.
        let back = decode_events(&rmp_serde::to_vec_named(&theirs).unwrap()).unwrap();
        for (at, (theirs, back)) in theirs.iter().zip(&back).enumerate() {
            assert_eq!(
                (back.worker, back.event_id, back.event.as_ref()),
                (worker, case + at as u64, Some(&events[at]))
            );
            let single = decode_events(&rmp_serde::to_vec_named(theirs).unwrap()).unwrap();
            assert_eq!(single.as_slice(), std::slice::from_ref(back));
            if theirs.storage_tier == StorageTier::Device {
                assert_eq!(decode_json_event(&serde_json::to_vec(theirs).unwrap()).as_ref(), Some(back));
            }
        }
    }
}
