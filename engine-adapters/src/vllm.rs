//! vLLM's dialect, which SGLang shares: KV events read and written, heard and published.

pub mod decode;
pub mod publisher;
pub mod subscriber;
pub mod track;
pub mod wire;
