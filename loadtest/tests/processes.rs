//! Real processes, killed and replaced. A program of its own, so that nothing else takes their processor time.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test fails where it stands")]

mod chaos;
#[path = "common/processes.rs"]
mod processes;
mod routers;
mod upgrade;
