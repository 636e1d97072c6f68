//! What a router costs by itself: instant engines behind it, a client in front of it, and the processor time of its own
//! process between them.
//!
//! Engines and client run in this process; the router is another one, on another core. Several routers are measured in
//! turn, round by round, so that what the machine does to one it does to all.

mod catalogue;
mod client;
mod engine;
mod figures;
mod scenario;
mod subject;

pub use self::catalogue::Catalogue;
pub use self::client::{Client, Sent};
pub use self::engine::{EngineSettings, Engines};
pub use self::figures::{Figure, Round, tables};
pub use self::scenario::{Scenario, Texts, named};
pub use self::subject::{Running, Stage, Subject, pin_self};
