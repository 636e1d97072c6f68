//! A simulated worker: the engine on the wall clock behind an OpenAI server that speaks as vLLM does.
//!
//! `Worker::start` binds everything and serves until its token is cancelled. Underneath, [`driver`] owns the
//! engine and its clock, [`events`] tells the world what is cached, [`serving`] takes requests and [`answering`] sends what comes, [`metrics`] and
//! [`faults`] are what their names say. Every figure it reports is simulated.

mod answering;
mod clock;
mod driver;
mod events;
mod faults;
mod generate;
mod http;
mod metrics;
mod options;
mod reply;
mod server;
mod serving;

pub use self::events::EventOptions;
pub use self::faults::{FaultError, Faults};
pub use self::options::{OptionsError, WorkerOptions};
pub use self::server::{StartError, Worker};
