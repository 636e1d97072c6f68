//! The routing service: from a client's request to a worker's answer. ARCHITECTURE.md walks through it.

#![forbid(unsafe_code)]

pub mod app;
pub mod cli;
pub mod config;
pub mod discovery;
pub mod error;
pub mod http;
pub mod index_feed;
pub mod load_exchange;
pub mod memory;
pub mod metrics;
pub mod openai;
pub mod preprocess;
pub mod probe;
pub mod proxy;
pub mod scheduling;
pub mod telemetry;
pub mod threads;
