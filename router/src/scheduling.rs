//! Where a request goes: plain numbers in, a decision out, its load counted from then on.
//!
//! [`select`] is pure. It sees what each worker would cost, ready-made, and a draw; no clock, no lock, no
//! randomness of its own, so any decision can be replayed. [`Scheduler::place`] gathers the numbers, selects and
//! reserves in one critical section. A [`Reservation`] gives back what it took when it is dropped, and calls whoever
//! waits in the [`WaitingRoom`] because every worker had as many as it may have.

mod active_load;
mod active_paths;
mod audit;
mod fair_queue;
mod peers;
mod policy;
mod safety_net;
mod scheduler;
mod selector;
mod slots;
mod strangers;
mod waiting_room;

pub use self::active_load::ActiveLoad;
pub use self::audit::{Answered, Cause, OverlapAudit, Verdict};
pub use self::fair_queue::{FairQueue, Place, Priority};
pub use self::peers::{LoadReport, Peers, Share, Told};
pub use self::policy::{Policy, Said, Weights};
pub use self::safety_net::SafetyReport;
pub use self::scheduler::{Demand, Load, Placement, Reservation, Scheduler, Standing};
pub use self::selector::{Barred, Candidate, Cost, Decision, RANKED, Ranked, Slots, select};
pub use self::slots::SlotSense;
pub use self::strangers::Strangers;
pub use self::waiting_room::{NoPlace, Waiting, WaitingRoom, WaitingRules};
