//! A message of Dynamo's event plane: envelope, payload, and the JSON of 0.9.
#![no_main]

use kvlane_engine_adapters::dynamo::{Envelope, decode_events, decode_json_event};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(envelope) = Envelope::decode(bytes) {
        let _ = decode_events(envelope.payload);
    }
    let _ = (decode_events(bytes), decode_json_event(bytes));
});
