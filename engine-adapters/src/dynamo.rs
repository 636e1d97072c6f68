//! NVIDIA Dynamo's event plane as bytes: router events in envelopes (msgpack since 1.0), and the plain JSON of 0.9.
//!
//! Ours and theirs understand each other: our bridge publishes this, and theirs can be listened to.

mod subjects;
mod wire;

pub use self::subjects::{Scope, Subjects};
pub use self::wire::{
    Envelope, RouterEvent, decode_events, decode_json_event, encode_envelope, encode_events,
};
