//! The sidecar beside one engine: its events in, NATS out in Dynamo's envelope.
//!
//! The bridge keeps a [`mirror`] of what its worker holds, so that a router that comes late or has lost track gets
//! all of it on request. Events wait in a bounded [`outbox`]; should it overflow, a number is left out, which every
//! listener takes for a gap and asks.

mod mirror;
mod outbox;
mod publisher;
mod sidecar;

pub use self::mirror::Mirror;
pub use self::outbox::{Message, Outbox, OutboxTarget};
pub use self::publisher::{BridgePublisher, SNAPSHOT_CHUNK, SNAPSHOT_NEXT, message_bytes, snapshot_parts};
pub use self::sidecar::{Sidecar, SidecarConfig, SidecarError};
