//! Frames recorded from real vLLM engines (0.23 and 0.32), with the requests that caused them: read, taken into
//! an index, and asked before each request what the engine then reported as cached.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use kvlane_engine_adapters::cursor::{EventCursor, Verdict};
use kvlane_engine_adapters::feed::{CopyRule, FeedClock, FeedHealth, IndexTarget, Sink};
use kvlane_engine_adapters::vllm::decode::{self, Batch, Event};
use kvlane_indexer::{BlockHasher, BlockSize, Index, IndexConfig, Namespace, WorkerId};
use serde_json::Value;

const WORKER: WorkerId = WorkerId::new(1, 0);

fn base64(value: &Value) -> Vec<u8> {
    base64::engine::general_purpose::STANDARD.decode(value.as_str().unwrap()).unwrap()
}

fn lines(text: &str) -> impl Iterator<Item = Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap())
}

fn block_size() -> BlockSize {
    BlockSize::new(32).unwrap()
}

struct Replayed {
    /// Steps where the prediction was right.
    right: usize,
    /// Step, predicted tokens, reported tokens.
    wrong: Vec<(String, usize, usize)>,
    restarts: usize,
    sink: Sink,
}

/// Plays a recording into an index and compares each request's cached tokens with what the index knew before it.
fn replay(recording: &str, copies: CopyRule) -> Replayed {
    let index = Arc::new(Index::new(IndexConfig { shards: 4, ..IndexConfig::default() }));
    let clock = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(async { FeedClock::starting(Duration::from_secs(1_794_701_000)) });
    let health = Arc::new(FeedHealth::new(WORKER));
    let sink =
        Sink::new(Box::new(IndexTarget::new(index.clone(), WORKER)), block_size(), copies, clock, health);
    let mut replayed = Replayed { right: 0, wrong: Vec::new(), restarts: 0, sink };
    let mut cursor = EventCursor::default();
    let mut first = true;
    for line in lines(recording) {
        if line["kind"] == "note" {
            // The engine was killed, which a feed sees by its connection.
            replayed.sink.forget();
        }
        if line["kind"] == "zmq" {
            let frames: Vec<Vec<u8>> = line["frames_b64"].as_array().unwrap().iter().map(base64).collect();
            let number = u64::from_be_bytes(frames[1].clone().try_into().unwrap());
            let batch = decode::batch(&frames[2]).unwrap();
            match cursor.judge(number, batch.seconds) {
                Verdict::Next => {}
                // Recordings may begin in the middle, after a reset.
                Verdict::Gap { .. } if first => {}
                Verdict::Restart => {
                    replayed.restarts += 1;
                    replayed.sink.forget();
                }
                other => panic!("{other:?}"),
            }
            first = false;
            cursor.passed(number, batch.seconds);
            replayed.sink.apply(&batch).unwrap();
            continue;
        }
        let (body, usage) = (&line["body"], &line["response"]["usage"]);
        if line["kind"] != "http"
            || line["prompt_token_ids"].is_null()
            || usage.is_null()
            || body["n"].as_u64() > Some(1)
        {
            continue;
        }
        let tokens: Vec<u32> = serde_json::from_value(line["prompt_token_ids"].clone()).unwrap();
        let namespace = Namespace {
            cache_salt: body["cache_salt"].as_str(),
            lora_name: body["model"].as_str().filter(|model| *model == "ad1"),
        };
        let hashes = BlockHasher::new(block_size(), namespace).sequence(&tokens);
        let held = index.overlap(&hashes, clock.tick()).of(WORKER).device as usize;
        let predicted = held.min((tokens.len() - 1) / 32) * 32;
        let reported = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0) as usize;
        if predicted == reported {
            replayed.right += 1;
        } else {
            replayed.wrong.push((line["step"].as_str().unwrap().to_owned(), predicted, reported));
        }
    }
    replayed
}

#[test]
fn an_index_fed_by_real_events_knows_what_the_engine_will_report() {
    // Step 07 of the 0.32 runs asks for a full report, which announces several blocks without storing them anew.
    for (recording, right) in [
        (include_str!("fixtures/vllm/v0320-int-sha256-events.jsonl"), 19),
        (include_str!("fixtures/vllm/v0320-bytes-sha256cbor-lora-events.jsonl"), 21),
        (include_str!("fixtures/vllm/v0320-int-xxhashcbor-events.jsonl"), 19),
        (include_str!("fixtures/vllm/v0230-int-sha256-array-events.jsonl"), 17),
        (include_str!("fixtures/vllm/v0320-dup-block-proof.jsonl"), 5),
        (include_str!("fixtures/vllm/v0320-engine-restart.jsonl"), 3),
    ] {
        let replayed = replay(recording, CopyRule::Counted);
        assert_eq!((replayed.right, replayed.wrong.as_slice()), (right, &[][..]), "{}", &recording[..60]);
        let report = replayed.sink.health().report();
        assert_eq!(
            (report.decode_errors, report.orphaned_blocks, report.refused_events, report.unknown_events),
            (0, 0, 0, 0)
        );
        assert_eq!(report.left_out.total(), 0);
    }
}

#[test]
fn without_counting_copies_a_block_is_given_up_early() {
    let replayed = replay(include_str!("fixtures/vllm/v0320-dup-block-proof.jsonl"), CopyRule::Once);
    assert_eq!(replayed.wrong, [("d5-probe-A-plus-1".to_owned(), 64, 96)]);
}

#[test]
fn an_engine_that_was_killed_is_known_by_its_numbers() {
    let replayed = replay(include_str!("fixtures/vllm/v0320-engine-restart.jsonl"), CopyRule::Counted);
    assert_eq!(replayed.restarts, 1);
}

/// An event, in a form that is the same for every version.
fn summary(batch: &Batch) -> Vec<String> {
    let ids =
        |names: &[kvlane_indexer::EngineBlockId]| names.iter().map(|name| name.to_u64()).collect::<Vec<_>>();
    let event = |event: &Event| match event {
        Event::Stored(stored) => format!(
            "stored {:x?} after {:?}: {:?} by {} salt {:?}",
            ids(&stored.names),
            stored.parent,
            stored.tokens,
            stored.block_tokens,
            stored.extra.cache_salt
        ),
        Event::Removed { names, .. } => format!("removed {:x?}", ids(names)),
        Event::Cleared => "cleared".to_owned(),
    };
    batch.events.iter().map(event).collect()
}

#[test]
fn every_versions_encoding_is_read() {
    let mut versions = 0;
    for line in lines(include_str!("fixtures/vllm/struct-encodings-by-version.jsonl")) {
        let version = line["vllm_version"].as_str().unwrap();
        let ints = decode::batch(&base64(&line["payload_int_b64"])).unwrap();
        assert_eq!((ints.seconds, ints.rank, ints.unknown), (1_700_000_000.25, Some(0), 0), "{version}");
        // Salts came with the extra keys, in 0.17.
        let minor: u32 = version.split('.').nth(1).unwrap().parse().unwrap();
        let salt = if minor >= 17 { "Some(\"tenant-a\")" } else { "None" };
        let expected = [
            format!("stored [f000000000000001, 2] after None: [0, 1, 2, 3, 4, 5, 6, 7] by 4 salt {salt}"),
            "removed [2]".to_owned(),
            "cleared".to_owned(),
        ];
        assert_eq!(summary(&ints), expected, "{version}");
        let bytes = decode::batch(&base64(&line["payload_bytes_hash_b64"])).unwrap();
        let [Event::Stored(stored)] = bytes.events.as_slice() else { panic!("{version}: {bytes:?}") };
        assert_eq!(
            (stored.names.len(), stored.parent.is_some(), stored.tokens.len()),
            (2, true, 8),
            "{version}"
        );
        versions += 1;
    }
    assert_eq!(versions, 27);
}

#[test]
fn sglangs_arrays_and_signed_names_are_read() {
    let line: Value =
        serde_json::from_str(include_str!("fixtures/vllm/sglang-kv_events.SYNTHETIC.json")).unwrap();
    let batch = decode::batch(&base64(&line["payload_b64"])).unwrap();
    let [Event::Stored(stored), Event::Removed { names, .. }, Event::Cleared] = batch.events.as_slice()
    else {
        panic!("{batch:?}")
    };
    let signed = kvlane_indexer::EngineBlockId::from(-278_502_217_879_090_434_i64);
    assert_eq!((stored.names[1], names.as_slice(), stored.block_tokens), (signed, [signed].as_slice(), 16));
}

#[test]
fn replays_of_both_forms_are_read_from_their_end() {
    for recording in [
        include_str!("fixtures/vllm/v0320-int-sha256-replay.jsonl"),
        include_str!("fixtures/vllm/v0230-int-sha256-array-replay.jsonl"),
    ] {
        let all = lines(recording).find(|line| line["name"] == "all-dealer").unwrap();
        let replies = all["replies_b64"].as_array().unwrap();
        let mut last = None;
        for (at, reply) in replies.iter().enumerate() {
            let frames: Vec<Vec<u8>> = reply.as_array().unwrap().iter().map(base64).collect();
            let [.., number, batch] = frames.as_slice() else { panic!("{frames:?}") };
            if at + 1 == replies.len() {
                assert_eq!(number, &[0xff; 8]);
            } else {
                // The recording leaves some out.
                assert!(last.replace(number.clone()) < Some(number.clone()));
                decode::batch(batch).unwrap();
            }
        }
    }
}
