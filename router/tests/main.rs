//! What the router promises to those outside it.
//!
//! One program, so that what they all link is compiled and linked once: a file here is a module of it.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test fails where it stands")]

mod access;
#[path = "../../engine-adapters/tests/support/certificates.rs"]
mod certificates;
mod clients;
mod continuation;
mod discovery;
mod event_path;
mod failover;
mod hostile;
mod lifecycle;
mod reference;
mod request_path;
mod scheduling;
mod secrets;
mod sites;
mod support;
mod tls;
mod tls_workers;
