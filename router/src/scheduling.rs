//! Where a request goes: plain numbers in, a decision out, its load counted from then on.
//!
//! [`select`] is pure. It sees what each worker would cost, ready-made, and a draw; no clock, no lock, no
//! randomness of its own, so any decision can be replayed. [`Scheduler::place`] gathers the numbers, selects and
//! reserves in one critical section. A [`Reservation`] gives back what it took when it is dropped.

mod active_load;
mod scheduler;
mod selector;

pub use self::active_load::ActiveLoad;
pub use self::scheduler::{Demand, Load, Placement, Reservation, Scheduler, Standing};
pub use self::selector::{Barred, Candidate, Cost, Decision, Policy, Ranked, select};
