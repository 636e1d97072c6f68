//! Answers of TensorRT-LLM's `/kv_cache_events`, one a line, read and taken into an index.
#![no_main]

use std::sync::Arc;
use std::time::Duration;

use kvlane_engine_adapters::feed::{FeedClock, IndexTarget};
use kvlane_engine_adapters::trtllm::{Poll, Poller};
use kvlane_indexer::{BlockSize, Index, IndexConfig, WorkerId};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let index = Arc::new(Index::new(IndexConfig { max_bytes: 1 << 20, shards: 4, ..IndexConfig::default() }));
    let poll = Poll::new(WorkerId::new(1, 0), "http://127.0.0.1:9", BlockSize::new(4).unwrap());
    let target = index.clone();
    let targets = move |worker| IndexTarget::new(target.clone(), worker);
    let mut poller = Poller::new(poll, targets, FeedClock::starting(Duration::ZERO));
    bytes.split(|byte| *byte == b'\n').for_each(|line| poller.hear_answer(line));
    index.check();
});
