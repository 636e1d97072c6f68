//! A batch of vLLM's or SGLang's, read, translated and taken into an index, and into the mirror that a bridge tells from.
#![no_main]

use kvlane_engine_adapters::bridge::Mirror;
use kvlane_engine_adapters::translate::Translator;
use kvlane_engine_adapters::vllm::decode;
use kvlane_indexer::{BlockSize, Index, IndexConfig, Tick, WorkerId};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(batch) = decode::batch(bytes) else { return };
    let index = Index::new(IndexConfig { max_bytes: 1 << 20, shards: 4, ..IndexConfig::default() });
    let mut mirror = Mirror::default();
    let mut translator = Translator::new(BlockSize::new(4).unwrap());
    let worker = WorkerId::new(1, batch.rank.unwrap_or(0));
    for event in &batch.events {
        if let Ok(Some(event)) = translator.translate(event)
            && event.check().is_ok()
        {
            let _ = index.apply(worker, &event, Tick(0));
            let _ = mirror.apply(&event, &mut |_| ());
        }
    }
    index.check();
    let told = Index::new(IndexConfig { shards: 4, ..IndexConfig::default() });
    for event in mirror.events() {
        assert_eq!(told.apply(worker, &event, Tick(0)).expect("a bridge's own event").orphaned, 0);
    }
    told.check();
});
