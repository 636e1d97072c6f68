//! What a client sees of its requests, and figures made of that.
//!
//! Times are counted from when a request was *due*, not from when it was sent: a generator that falls behind must not
//! flatter the server (coordinated omission). How far it fell behind is measured on its own.

mod evenness;
mod figures;
mod recent;
mod stopwatch;

pub(crate) use self::evenness::Evenness;
pub use self::figures::{Figures, Objective, Quantiles, Summary, Times};
pub use self::recent::{Recent, WindowSummary};
pub use self::stopwatch::{ErrorClass, Measured, Stopwatch};
