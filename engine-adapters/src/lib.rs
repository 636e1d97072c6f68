//! Each engine's dialect in and out, turned into the words of `kvlane-indexer`.
//!
//! Events come in by [`vllm`] (and SGLang, which sends the same), [`trtllm`] and [`nats`], go through
//! [`translate`], [`copies`] and [`cursor`], and end as the indexer's `KvEvent`s in [`feed`]. [`model`] and
//! [`openai`] are what a prompt is made of. [`sim`] is a simulated engine; whatever it measures is simulated.

#![forbid(unsafe_code)]

pub mod bridge;
pub mod copies;
pub mod cursor;
pub mod dynamo;
pub mod engine_facts;
pub mod feed;
pub mod http_client;
pub mod model;
mod msgpack;
pub mod nats;
pub mod openai;
pub mod process;
pub mod secret;
pub mod sim;
pub mod tls;
pub mod translate;
pub mod trtllm;
pub mod vllm;

pub use self::msgpack::MsgpackError;
