//! A worker's answer, read in one piece and in many: the same is read, or the same is wrong. The same bytes as an
//! engine's error.
#![no_main]

use kvlane_fuzz::cut;
use kvlane_router::proxy::{Http1Error, ReadAnswer, nested, read_pieces};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

/// Longer lines are refused only when they come in parts.
const LONGEST: usize = 4 << 10;

fn shown(answer: Result<ReadAnswer, Http1Error>) -> Result<String, String> {
    answer.map(|answer| format!("{answer:?}")).map_err(|error| error.to_string())
}

fuzz_target!(|input: &[u8]| {
    let Some((answer, pieces)) = cut(input) else { return };
    if answer.len() > LONGEST {
        return;
    }
    let whole = shown(read_pieces([answer].into_iter()));
    assert_eq!(shown(read_pieces(pieces.into_iter())), whole);
    assert_eq!(shown(read_pieces(answer.chunks(1))), whole);
    if let Some(error) = nested(answer) {
        assert!(serde_json::from_slice::<Value>(&error).expect("JSON")["error"]["message"].is_string());
    }
});
