//! What the load generator promises to those outside it.
//!
//! One program, so that what they all link is compiled and linked once: a file here is a module of it.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test fails where it stands")]

mod commands;
mod common;
mod faults;
mod live;
mod page;
mod policy;
mod reference;
mod sweep;
mod workloads;
