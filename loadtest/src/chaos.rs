//! Real processes over loopback, some of which are killed while conversations run: what clients see of it, and what is
//! left behind.
//!
//! Engines are simulated, everything else is what is deployed: routers, bridges, a NATS server. A small TCP balancer
//! stands before the routers, as a service or a load balancer would.

mod balancer;
mod bench;
mod caller;
mod conversations;
mod kills;
mod reference;
mod rest;
mod run;
mod tally;

pub use self::balancer::Balancer;
pub(crate) use self::bench::sum_of;
pub use self::bench::{Bench, Layout, Part, nats_server};
pub use self::caller::{Attempt, Caller, Ended};
pub use self::conversations::{Conversations, Script};
pub use self::kills::{Killer, Rhythm};
pub use self::reference::Reference;
pub use self::rest::{Footprint, Rest, View, at_rest};
pub use self::run::{Chaos, Counted, Report, Target};
pub use self::tally::{Outcome, Row, Tally};
