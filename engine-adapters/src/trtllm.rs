//! TensorRT-LLM's dialect: KV events that are handed out once, to whoever asks first.

mod poller;
mod wire;

pub use self::poller::{Poll, Poller};
pub use self::wire::{Data, Event, decode};
