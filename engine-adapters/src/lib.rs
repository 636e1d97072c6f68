//! Each engine's dialect in and out, turned into the words of `kvlane-indexer`.
//!
//! So far: [`sim`], a simulated engine. Whatever it measures is simulated and must be called so.

mod msgpack;

pub mod model;
pub mod openai;
pub mod sim;
pub mod vllm;
