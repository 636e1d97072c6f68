//! Where a request goes: plain numbers in, a decision out.
//!
//! [`select`] is pure. It sees what each worker would cost, ready-made, and a draw; no clock, no lock, no
//! randomness of its own, so any decision can be replayed. [`ActiveLoad`] counts what a worker is busy with.

mod active_load;
mod selector;

pub use self::active_load::ActiveLoad;
pub use self::selector::{Candidate, Cost, Decision, Policy, Ranked, select};
