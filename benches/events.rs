//! Events through NATS' form into the index: blocks a second on one core, and what of it is reading.
//!
//! Timed: messages as they come off the wire (envelopes of Dynamo's form, up to 128 events and 8,192 blocks) to the
//! index, on one thread. Outside: making the messages, the network. The history is a multi-turn one: ten documents of
//! 110 blocks, 2,000 conversations of five turns of 12 blocks on eight workers, then everything removed from the end.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints, and fails where it stands")]
#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

use std::time::Instant;

use kvlane_engine_adapters::dynamo::{Envelope, decode_events, encode_envelope, encode_events};
use kvlane_engine_adapters::translate::Translator;
use kvlane_engine_adapters::vllm::decode;
use kvlane_engine_adapters::vllm::wire::{Encoder, OutEvent};
use kvlane_indexer::{BlockHash, BlockSize, Index, IndexConfig, KvEvent, StoredBlock, Tick, Tier, WorkerId};

const WORKERS: u64 = 8;
const ROUNDS: usize = 5;
/// The bar, in blocks a second on one core.
const FEWEST: f64 = 200_000.0;

fn block(id: u64) -> StoredBlock {
    StoredBlock { id: id.into(), hash: BlockHash(id.wrapping_mul(0x9E37_79B9_7F4A_7C15)) }
}

/// Each worker's events, in order.
fn history() -> Vec<(WorkerId, Vec<KvEvent>)> {
    let mut workers: Vec<(WorkerId, Vec<KvEvent>)> =
        (0..WORKERS).map(|worker| (WorkerId::new(worker, 0), Vec::new())).collect();
    let mut removed: Vec<Vec<KvEvent>> = vec![Vec::new(); WORKERS as usize];
    for conversation in 0..2000_u64 {
        let (_, events) = &mut workers[(conversation % WORKERS) as usize];
        let document = conversation % 10 * 1000;
        let tier = Tier::Device;
        events.push(KvEvent::Stored {
            tier,
            parent: None,
            blocks: (document..document + 110).map(block).collect(),
        });
        let mut parent = document + 109;
        for turn in 0..5 {
            let first = (conversation + 1) * 100_000 + turn * 12;
            events.push(KvEvent::Stored {
                tier,
                parent: Some(parent.into()),
                blocks: (first..first + 12).map(block).collect(),
            });
            let ids = (first..first + 12).rev().map(Into::into).collect();
            removed[(conversation % WORKERS) as usize].push(KvEvent::Removed { tier, ids });
            parent = first + 11;
        }
    }
    for ((_, events), removed) in workers.iter_mut().zip(removed) {
        events.extend(removed.into_iter().rev());
    }
    workers
}

fn blocks(event: &KvEvent) -> usize {
    match event {
        KvEvent::Stored { blocks, .. } => blocks.len(),
        KvEvent::Removed { ids, .. } => ids.len(),
        KvEvent::Cleared { .. } => 0,
    }
}

/// The best of a few rounds, in blocks a second.
fn best(total: usize, mut round: impl FnMut()) -> f64 {
    let seconds = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        round();
        start.elapsed().as_secs_f64()
    });
    total as f64 / seconds.fold(f64::INFINITY, f64::min)
}

fn main() {
    let history = history();
    let total: usize = history.iter().flat_map(|(_, events)| events).map(blocks).sum();
    let mut messages: Vec<Vec<u8>> = Vec::new();
    for (worker, events) in &history {
        for (sequence, events) in events.chunks(64).enumerate() {
            let payload =
                encode_events(*worker, (1..).zip(events).take(events.len()).collect::<Vec<_>>().into_iter());
            let envelope = Envelope {
                publisher: worker.instance,
                sequence: sequence as u64,
                published_at_ms: 0,
                topic: "kv-events",
                payload: &payload,
            };
            messages.push(encode_envelope(&envelope));
        }
    }
    let read = |message: &[u8]| decode_events(Envelope::decode(message).unwrap().payload).unwrap();
    let decode_only =
        best(total, || messages.iter().for_each(|message| drop(std::hint::black_box(read(message)))));
    let apply = |index: &Index, message: &[u8]| {
        for event in read(message) {
            if let Some(kv_event) = &event.event {
                let _ = index.apply(event.worker, kv_event, Tick(0)).unwrap();
            }
        }
    };
    let both = best(total, || {
        let index = Index::new(IndexConfig::default());
        messages.iter().for_each(|message| apply(&index, message));
        std::hint::black_box(index.bytes());
    });

    // The same from vLLM's own batches, tokens hashed on the way.
    let tokens: Vec<u32> = (0..128).collect();
    let names: Vec<u64> = (1..9).collect();
    let stored = OutEvent::Stored {
        names: names.clone(),
        parent: None,
        tokens: &tokens,
        block_tokens: 16,
        lora_name: None,
        cache_salt: None,
        session_id: None,
    };
    let batch = Encoder::default().batch(0.0, &[stored]);
    let mut translator = Translator::new(BlockSize::new(16).unwrap());
    let vllm = best(names.len() * 20_000, || {
        for _ in 0..20_000 {
            for event in &decode::batch(&batch).unwrap().events {
                std::hint::black_box(translator.translate(event).unwrap());
            }
        }
    });

    println!("{total} blocks in {} messages, best of {ROUNDS}, one thread", messages.len());
    println!("NATS form, read only:       {:>8.0} thousand blocks/s", decode_only / 1e3);
    println!(
        "NATS form, read and applied:{:>8.0} thousand blocks/s ({:.2} of reading alone)",
        both / 1e3,
        both / decode_only
    );
    println!("vLLM's form, read and hashed (16 tokens a block): {:.0} thousand blocks/s", vllm / 1e3);
    assert!(both >= FEWEST, "{both:.0} blocks/s, expected {FEWEST} or more");
}
