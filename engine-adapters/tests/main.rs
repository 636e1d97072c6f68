//! What the adapters promise to those outside them.
//!
//! One program, so that what they all link is compiled and linked once: a file here is a module of it.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test fails where it stands")]

mod captures;
#[path = "support/certificates.rs"]
mod certificates;
mod clients;
mod nats;
mod nats_tls;
#[path = "support/ports.rs"]
mod ports;
mod subscriber;
mod support;
mod templates;
mod vllm_shapes;
mod worker;
mod worker_events;
