//! What the simulated worker says about its cache, over ZeroMQ and as TensorRT-LLM's queue.

use std::net::SocketAddr;
use std::time::Duration;

use kvlane_engine_adapters::sim::Calibration;
use kvlane_engine_adapters::sim::worker::{EventOptions, Worker, WorkerOptions};
use kvlane_engine_adapters::vllm::wire::{Encoder, Spelling};
use serde_json::{Value, json};
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

use crate::support::{ask, options, post, publishing, start};

async fn subscribe(to: SocketAddr) -> SubSocket {
    let mut socket = SubSocket::new();
    socket.subscribe("").await.unwrap();
    socket.connect(&format!("tcp://{to}")).await.unwrap();
    // A subscription takes effect when the publisher has read it.
    tokio::time::sleep(Duration::from_millis(700)).await;
    socket
}

async fn complete(worker: &Worker, first: u32, tokens: u32) {
    let prompt: Vec<u32> = (first..first + tokens).collect();
    let answer = post(worker.address(), "/v1/completions", &json!({"prompt": prompt, "max_tokens": 1})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

fn number(frame: &[u8]) -> u64 {
    u64::from_be_bytes(frame.try_into().unwrap())
}

/// The next message's number and batch; panics when none comes.
async fn next(socket: &mut SubSocket) -> (u64, Vec<u8>) {
    let message =
        tokio::time::timeout(Duration::from_secs(10), socket.recv()).await.expect("an event").unwrap();
    let frames = message.into_vec();
    assert_eq!((frames.len(), frames[0].as_ref()), (3, b"kv-events".as_slice()));
    (number(&frames[1]), frames[2].to_vec())
}

/// Numbers and batches the replay socket still has, from `first` on.
async fn replay(from: SocketAddr, first: u64, with_topic: bool) -> Vec<(u64, Vec<u8>)> {
    let mut socket = DealerSocket::new();
    socket.connect(&format!("tcp://{from}")).await.unwrap();
    let request = vec![bytes::Bytes::new(), bytes::Bytes::copy_from_slice(&first.to_be_bytes())];
    socket.send(ZmqMessage::try_from(request).unwrap()).await.unwrap();
    let mut batches = Vec::new();
    loop {
        let reply =
            tokio::time::timeout(Duration::from_secs(10), socket.recv()).await.expect("a reply").unwrap();
        let frames = reply.into_vec();
        assert_eq!(frames.len(), if with_topic { 4 } else { 3 }, "{frames:?}");
        let [.., sequence, batch] = frames.as_slice() else { panic!("{frames:?}") };
        if number(sequence) == u64::MAX {
            return batches;
        }
        batches.push((number(sequence), batch.to_vec()));
    }
}

#[tokio::test]
async fn a_subscriber_hears_each_batch_once_and_can_ask_again() {
    for spelling in [Spelling::Maps, Spelling::Arrays] {
        let worker = start(publishing(Encoder { spelling, ..Encoder::default() })).await;
        let mut subscriber = subscribe(worker.events_address().unwrap()).await;
        let mut heard = Vec::new();
        for turn in 0..5 {
            complete(&worker, 100 * turn, 96).await;
            heard.push(next(&mut subscriber).await);
        }
        assert_eq!(heard.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        let asked =
            async |first| replay(worker.replay_address().unwrap(), first, spelling == Spelling::Maps).await;
        assert_eq!(asked(0).await, heard);
        assert_eq!(asked(3).await, heard[3..]);
        assert_eq!(asked(99).await, []);
    }
}

#[tokio::test]
async fn batches_can_be_lost_doubled_and_swapped() {
    let worker = start(WorkerOptions { fault_switches: true, ..publishing(Encoder::default()) }).await;
    let mut subscriber = subscribe(worker.events_address().unwrap()).await;
    let mut heard = async |faults: Value, requests: u32, expected: &[u64]| {
        post(worker.address(), "/faults", &faults).await;
        for request in 0..requests {
            complete(&worker, 100 * request + expected[0] as u32 * 7, 64).await;
        }
        for expected in expected {
            assert_eq!(next(&mut subscriber).await.0, *expected, "{faults}");
        }
    };
    heard(json!({"duplicate_events": 1}), 2, &[0, 0, 1, 1]).await;
    heard(json!({"reorder_events": 1}), 4, &[3, 2, 5, 4]).await;
    post(worker.address(), "/faults", &json!({"drop_events": 1})).await;
    complete(&worker, 3000, 64).await;
    heard(json!({}), 1, &[7]).await;
    // What was lost can be had from the replay socket.
    let all = replay(worker.replay_address().unwrap(), 6, true).await;
    assert_eq!(all.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [6, 7]);
}

#[tokio::test]
async fn a_restart_counts_from_zero_on_the_same_ports() {
    let worker = start(WorkerOptions { fault_switches: true, ..publishing(Encoder::default()) }).await;
    let events = worker.events_address().unwrap();
    let mut subscriber = subscribe(events).await;
    complete(&worker, 0, 64).await;
    complete(&worker, 100, 64).await;
    assert_eq!((next(&mut subscriber).await.0, next(&mut subscriber).await.0), (0, 1));
    post(worker.address(), "/faults/restart", &Value::Null).await;
    let mut subscriber = subscribe(events).await;
    complete(&worker, 0, 64).await;
    assert_eq!(next(&mut subscriber).await.0, 0);
    assert_eq!(replay(worker.replay_address().unwrap(), 0, true).await.len(), 1);
}

#[tokio::test]
async fn tensorrt_llms_events_are_there_once() {
    let calibration = Calibration { kv_blocks: 8, ..options().calibration };
    let events = EventOptions { trtllm_buffer: Some(100), ..EventOptions::default() };
    let worker = start(WorkerOptions { calibration, events, ..options() }).await;
    let drain = async || -> Vec<Value> {
        let answer = ask(worker.address(), "POST", "/kv_cache_events", &[], "").await;
        serde_json::from_value(answer.json()).unwrap()
    };
    complete(&worker, 0, 96).await;
    let events = drain().await;
    let kinds = |events: &[Value]| -> Vec<String> {
        events.iter().map(|event| event["data"]["type"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(kinds(&events), ["created", "stored"]);
    let blocks = events[1]["data"]["blocks"].as_array().unwrap();
    assert_eq!((blocks.len(), blocks[0]["tokens"].as_array().unwrap().len()), (3, 32));
    assert!(blocks[0]["block_hash"].is_u64() && events[1]["data"]["parent_hash"].is_null());
    assert_eq!(drain().await, Vec::<Value>::new());
    // Eight blocks: the second prompt pushes the first one's tail out.
    complete(&worker, 1000, 200).await;
    let events = drain().await;
    assert!(kinds(&events).contains(&"removed".to_owned()), "{events:?}");
    let ids: Vec<u64> = events.iter().map(|event| event["event_id"].as_u64().unwrap()).collect();
    assert_eq!(ids, (2..2 + ids.len() as u64).collect::<Vec<_>>());
    // A reset is a list of removals, TensorRT-LLM having no word for it.
    ask(worker.address(), "POST", "/reset_prefix_cache", &[], "").await;
    let events = drain().await;
    assert!(!events.is_empty() && kinds(&events).iter().all(|kind| kind == "removed"), "{events:?}");
}

#[tokio::test]
async fn too_many_undrained_events_lose_the_oldest() {
    let events = EventOptions { trtllm_buffer: Some(2), ..EventOptions::default() };
    let worker = start(WorkerOptions { events, ..options() }).await;
    for request in 0..4 {
        complete(&worker, 100 * request, 40).await;
    }
    let events: Vec<Value> =
        serde_json::from_value(ask(worker.address(), "POST", "/kv_cache_events", &[], "").await.json())
            .unwrap();
    assert_eq!(events.iter().map(|event| event["event_id"].as_u64().unwrap()).collect::<Vec<_>>(), [3, 4]);
}
