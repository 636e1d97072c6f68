//! Where workers come from and how they are.
//!
//! Sources ([`sources`]) say which workers there should be. The [`Keeper`] watches each of them: asks what it is, feeds
//! the index from its events, looks after it once a second. Requests see a [`Fleet`], a snapshot by model.

mod allow;
mod belief;
mod fleet;
mod keeper;
pub mod sources;
mod watch;
mod worker;

pub use self::allow::Allow;
pub use self::belief::BeliefReport;
pub use self::fleet::{Fleet, Group, Served};
pub use self::keeper::{Found, Keeper, KeeperConfig, KeeperTools, OPERATOR};
pub use self::worker::{About, EngineLoad, Sight, Worker, WorkerState};
