//! A streamed answer on its way through: what is passed on is what came, less whole events of usage, and what is seen of
//! it does not depend on how it was cut.
#![no_main]

use bytes::Bytes;
use kvlane_fuzz::cut;
use kvlane_router::proxy::SseWatch;
use libfuzzer_sys::fuzz_target;

/// Longer events are not watched, which depends on cuts.
const LONGEST: usize = 1 << 20;

fn fed(drops_usage: bool, pieces: &[&[u8]]) -> (SseWatch, Vec<u8>) {
    let mut watch = SseWatch::new(drops_usage);
    let mut passed = Vec::new();
    for piece in pieces {
        let part = watch.feed(Bytes::copy_from_slice(piece));
        assert!(part.is_empty() || part.ends_with(b"\n"), "whole events");
        passed.extend_from_slice(&part);
    }
    passed.extend_from_slice(&watch.rest());
    (watch, passed)
}

/// Events with the empty lines that end them, and what is left.
fn events(stream: &[u8]) -> Vec<&[u8]> {
    let (mut events, mut from) = (Vec::new(), 0);
    for at in 0..stream.len() {
        let ended = stream[from..=at].ends_with(b"\n\n") || stream[from..=at].ends_with(b"\n\r\n");
        if ended {
            events.push(&stream[from..=at]);
            from = at + 1;
        }
    }
    events.push(&stream[from..]);
    events
}

fuzz_target!(|input: &[u8]| {
    let Some((stream, pieces)) = cut(input) else { return };
    if stream.len() > LONGEST {
        return;
    }
    let (whole, passed) = fed(false, &[stream]);
    assert_eq!(passed, stream);
    let (watch, passed) = fed(false, &pieces);
    assert_eq!(passed, stream);
    let (dropping, kept) = fed(true, &pieces);
    for other in [watch, dropping] {
        assert_eq!(format!("{:?}", other.seen), format!("{:?}", whole.seen));
        assert_eq!(other.complete(), whole.complete());
    }
    // Each event by itself, without what was learnt from those before it.
    let (mut expected, mut tokens, mut understood) = (Vec::new(), 0, true);
    for event in events(stream) {
        let (alone, kept) = fed(true, &[event]);
        assert!(kept == event || kept.is_empty() && alone.seen.usage.is_some());
        expected.extend_from_slice(&kept);
        tokens += alone.seen.tokens;
        understood &= alone.seen.malformed == 0;
    }
    assert_eq!(kept, expected);
    assert!(!understood || (whole.seen.tokens, whole.seen.malformed) == (tokens, 0));
});
