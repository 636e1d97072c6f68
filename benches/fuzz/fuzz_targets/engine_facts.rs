//! What an engine answers about itself: models, metrics, event sources.
#![no_main]

use kvlane_engine_adapters::engine_facts::EngineFacts;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut facts = EngineFacts::default();
    facts.read_any(bytes, "http://[::1]:8000/v1");
    // Sources and server info each name 1024 at most.
    assert!(facts.events.len() <= 2048);
    assert!(facts.models.len() <= bytes.len());
    // The next look at the same engine.
    facts.read_any(bytes, "engine");
});
