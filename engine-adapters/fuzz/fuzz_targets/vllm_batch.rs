//! A batch of vLLM's or SGLang's, read, translated and taken into an index.
#![no_main]

use std::sync::LazyLock;

use kvlane_engine_adapters::translate::Translator;
use kvlane_engine_adapters::vllm::decode;
use kvlane_indexer::{BlockSize, Index, IndexConfig, Tick, WorkerId};
use libfuzzer_sys::fuzz_target;

static INDEX: LazyLock<Index> =
    LazyLock::new(|| Index::new(IndexConfig { max_bytes: 1 << 20, shards: 4, ..IndexConfig::default() }));

fuzz_target!(|bytes: &[u8]| {
    let Ok(batch) = decode::batch(bytes) else { return };
    let mut translator = Translator::new(BlockSize::new(4).unwrap());
    for event in &batch.events {
        if let Ok(Some(event)) = translator.translate(event) {
            let _ = INDEX.apply(WorkerId::new(1, batch.rank.unwrap_or(0) % 4), &event, Tick(0));
        }
    }
});
