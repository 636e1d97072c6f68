//! What operators send: bodies, queries, names in paths.
#![no_main]

use std::sync::LazyLock;

use kvlane_router::config::{Config, Routing};
use kvlane_router::http::fuzzed::{decoded, read_drain, read_most, read_switch};
use libfuzzer_sys::fuzz_target;

static ROUTING: LazyLock<Routing> = LazyLock::new(|| Config::defaults().expect("defaults").routing);

/// The same by the book: two hexadecimal digits behind each percent sign, or the sign itself.
fn expected(text: &str) -> Vec<u8> {
    let (bytes, mut out, mut at) = (text.as_bytes(), Vec::new(), 0);
    let digit = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    while at < bytes.len() {
        match (bytes[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

fuzz_target!(|bytes: &[u8]| {
    let mut routing = ROUTING.clone();
    if let Err(error) = read_switch(bytes, &mut routing) {
        assert_eq!(error.status().as_u16(), 400);
    }
    for weight in [Some(routing.overlap_weight), routing.request_weight, Some(routing.temperature)] {
        assert!(weight.is_none_or(|weight| (0.0..=1e6).contains(&weight)));
    }
    if let Err(error) = read_drain(bytes) {
        assert_eq!(error.status().as_u16(), 400);
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(most) = read_most(text) {
        assert!((1..=1000).contains(&most));
    }
    assert_eq!(decoded(text), String::from_utf8_lossy(&expected(text)));
});
