//! A simulated serving engine: continuous batching over a finite prefix cache, on a clock that is passed in.
//!
//! [`SimEngine`] does no I/O and never sleeps: `submit`, `cancel`, and `step(now)`, which says what has come
//! out and when to call again. The same machine runs behind a server in real time and, in virtual time, as
//! fast as it can be stepped. Its timing comes from a [`Calibration`]; equal inputs give equal outputs.

mod answer;
mod cache;
mod calibration;
mod engine;
pub mod worker;

pub use self::answer::{Lexicon, LexiconError, Piece};
pub use self::calibration::{Calibration, CalibrationError, OutsideDelay, Speculation, Work};
pub use self::engine::{
    Drafts, Finished, FirstToken, Origin, Request, RequestId, SimEngine, StepOutput, SubmitError, TokensOut,
};

/// A moment of the engine's clock, in nanoseconds from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SimTime(pub u64);

impl SimTime {
    pub fn from_seconds(seconds: f64) -> Self {
        Self((seconds * 1e9).round() as u64)
    }

    #[must_use]
    pub fn after_ms(self, ms: f64) -> Self {
        Self(self.0.saturating_add((ms.max(0.0) * 1e6).round() as u64))
    }

    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Milliseconds since `earlier`; zero when that is later.
    pub fn ms_since(self, earlier: Self) -> f64 {
        self.0.saturating_sub(earlier.0) as f64 / 1e6
    }
}
