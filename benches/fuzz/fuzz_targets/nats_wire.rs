//! Whatever may come over NATS, in any order: events, announcements, snapshots, other routers' load. The index stays right
//! in itself and within its budget.
#![no_main]

use std::sync::Arc;
use std::time::Duration;

use arbitrary::{Arbitrary, Result, Unstructured};
use kvlane_engine_adapters::dynamo::{
    Envelope, RouterEvent, Scope, Subjects, decode_events, encode_envelope, encode_events,
};
use kvlane_engine_adapters::feed::FeedClock;
use kvlane_engine_adapters::nats::{Announcement, Ask, Gathered, Listener, NatsFeedConfig, Parts};
use kvlane_indexer::{
    BlockHash, BlockSize, EngineBlockId, Index, IndexConfig, KvEvent, StoredBlock, Tier, WorkerId,
};
use kvlane_router::scheduling::{LoadReport, Peers};
use libfuzzer_sys::fuzz_target;
use tokio::time::Instant;

const MAX_BYTES: usize = 16 << 10;
const MAX_SNAPSHOT: usize = 1 << 10;
const LONGEST: usize = 64;

fn ids(from: &mut Unstructured<'_>) -> Result<Vec<u64>> {
    // A run of names, some of them out of order.
    let (first, count) = (from.int_in_range(0..=60_u64)?, from.int_in_range(0..=24_u64)?);
    let mut ids: Vec<u64> = (first..first + count).collect();
    ids.extend(Vec::<u8>::arbitrary(from)?.into_iter().take(4).map(u64::from));
    Ok(ids)
}

fn event(from: &mut Unstructured<'_>) -> Result<KvEvent> {
    let tier = Tier::ALL[from.int_in_range(0..=2_usize)?];
    Ok(match from.int_in_range(0..=7)? {
        0..=4 => {
            let parent = if from.arbitrary()? {
                Some(EngineBlockId::from(from.int_in_range(0..=60_u64)?))
            } else {
                None
            };
            // An engine that gives one name to several blocks, or several names to one, is wrong; so may be what we hear.
            let spin = if from.ratio(1, 8)? { from.int_in_range(1..=3)? } else { 0 };
            let block = |id: u64| StoredBlock { id: id.into(), hash: BlockHash(id.wrapping_add(spin)) };
            KvEvent::Stored { tier, parent, blocks: ids(from)?.into_iter().map(block).collect() }
        }
        5..=6 => KvEvent::Removed { tier, ids: ids(from)?.into_iter().map(EngineBlockId::from).collect() },
        _ => KvEvent::Cleared { tier: None },
    })
}

fn payload(from: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    if from.ratio(1, 8)? {
        return Ok(Vec::<u8>::arbitrary(from)?);
    }
    let worker = WorkerId::new(from.int_in_range(0..=3)?, from.int_in_range(0..=1)?);
    let count = from.int_in_range(0..=3)?;
    let events: Vec<(u64, KvEvent)> =
        (0..count).map(|_| Ok((from.int_in_range(0..=20)?, event(from)?))).collect::<Result<_>>()?;
    let bytes = encode_events(worker, events.iter().map(|(id, event)| (*id, event)));
    let read = decode_events(&bytes).expect("our own bytes");
    let same = |(read, (id, event)): (&RouterEvent, &(u64, KvEvent))| {
        (read.worker, read.event_id, read.event.as_ref()) == (worker, *id, Some(event))
    };
    assert!(read.len() == events.len() && read.iter().zip(&events).all(same));
    Ok(bytes)
}

fn announcement(from: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    if from.ratio(1, 4)? {
        return Ok(Vec::<u8>::arbitrary(from)?);
    }
    let said = Announcement {
        worker_id: from.int_in_range(0..=3)?,
        dp_rank: from.int_in_range(0..=1)?,
        publisher: from.int_in_range(0..=3)?,
        next_sequence: from.int_in_range(0..=20)?,
        leaving: from.ratio(1, 5)?,
        ..Announcement::default()
    };
    Ok(serde_json::to_vec(&said).expect("an announcement"))
}

/// What may come of a question: nothing, parts in their order or not, or more of them than was allowed.
fn answer(from: &mut Unstructured<'_>) -> Result<Option<(u64, Vec<RouterEvent>)>> {
    let (next, of) = (from.int_in_range(0..=6)?, from.int_in_range(0..=3)?);
    let mut parts = Parts::new(MAX_SNAPSHOT);
    for at in 1..=of {
        let at = if from.ratio(1, 16)? { from.arbitrary()? } else { at };
        match parts.take((next, at, of), &payload(from)?) {
            Gathered::More => {}
            Gathered::Whole(next, events) => return Ok(Some((next, events))),
            Gathered::Wrong => break,
        }
    }
    Ok(None)
}

fn history(from: &mut Unstructured<'_>, feed: &mut Listener, index: &Index, peers: &Peers) -> Result<()> {
    let mut asks: Vec<Ask> = Vec::new();
    for _ in 0..LONGEST {
        if from.is_empty() {
            break;
        }
        match from.int_in_range(0..=9)? {
            0..=4 => {
                let payload = payload(from)?;
                let envelope = Envelope {
                    publisher: from.int_in_range(0..=3)?,
                    sequence: if from.ratio(1, 8)? { from.arbitrary()? } else { from.int_in_range(0..=6)? },
                    published_at_ms: from.arbitrary()?,
                    topic: "kv-events",
                    payload: &payload,
                };
                let bytes = encode_envelope(&envelope);
                assert_eq!(Envelope::decode(&bytes), Ok(envelope));
                feed.hear(bytes.into());
            }
            5 => feed.hear(Vec::<u8>::arbitrary(from)?.into()),
            6 => feed.announced(&announcement(from)?),
            7..=8 => {
                let answer = answer(from)?;
                // The oldest one, as a rule; one that is answered twice is a server's mistake that has to be borne.
                if let Some(ask) = asks.first().copied() {
                    feed.restore(ask.answered(answer));
                    if !from.ratio(1, 8)? {
                        asks.remove(0);
                    }
                }
            }
            _ => {
                let bytes = Vec::<u8>::arbitrary(from)?;
                if let Ok(report) = serde_json::from_slice::<LoadReport>(&bytes) {
                    peers.heard(&report, Instant::now());
                    peers.settle(Instant::now());
                    let _ = report
                        .loads
                        .iter()
                        .map(|share| peers.load(WorkerId::new(share.instance, share.rank)));
                    assert!(peers.count() <= 4);
                }
            }
        }
        asks.extend(feed.wanted());
        index.check();
        let room = index.bytes() <= MAX_BYTES || index.stats().distinct_blocks == 0;
        assert!(room, "{} bytes, at most {MAX_BYTES}", index.bytes());
    }
    let report = feed.view().report();
    assert!(report.publishers <= 8 && report.workers.len() <= 8);
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    let config = IndexConfig { max_bytes: MAX_BYTES, max_workers: 8, shards: 4, ..IndexConfig::default() };
    let index = Arc::new(Index::new(config));
    let subjects = Subjects::new(&Scope::default());
    let feed_config = NatsFeedConfig {
        max_publishers: 8,
        max_waiting: 4,
        ..NatsFeedConfig::new(subjects, BlockSize::USUAL)
    };
    let mut feed = Listener::new(feed_config, index.clone(), FeedClock::starting(Duration::ZERO));
    let peers = Peers::new(4, 4);
    let _ = history(&mut Unstructured::new(bytes), &mut feed, &index, &peers);
});
