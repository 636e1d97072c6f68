//! The streamed answer of an endpoint under test, as the load generator reads it: the same events however it is cut.
#![no_main]

use kvlane_fuzz::cut;
use kvlane_loadtest::client::read_pieces;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((stream, pieces)) = cut(input) else { return };
    let (whole, error) = read_pieces([stream].into_iter());
    let (cut, cut_error) = read_pieces(pieces.into_iter());
    assert_eq!(cut_error, error);
    // Events before the one that is not understood may have been handed out already.
    assert!(if error.is_some() { cut.len() >= whole.len() } else { cut == whole });
});
