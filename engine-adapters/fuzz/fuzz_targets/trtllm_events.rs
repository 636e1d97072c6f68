//! An answer of TensorRT-LLM's `/kv_cache_events`.
#![no_main]

use kvlane_engine_adapters::trtllm;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = trtllm::decode(bytes);
});
