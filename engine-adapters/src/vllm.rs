//! vLLM's dialect: KV events as it publishes them.

pub mod decode;
pub mod publisher;
pub mod wire;
