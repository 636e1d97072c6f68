//! The engine's clock, read off the wall clock and possibly faster or slower.

use std::time::Duration;

use tokio::time::Instant;

use crate::sim::SimTime;

/// Engine time runs `rate` times as fast as real time, since the last change of rate.
#[derive(Debug)]
pub(super) struct Clock {
    real: Instant,
    sim: SimTime,
    rate: f64,
}

impl Clock {
    pub(super) fn new(rate: f64) -> Self {
        Self { real: Instant::now(), sim: SimTime::default(), rate }
    }

    pub(super) fn now(&self) -> SimTime {
        self.sim.after_ms(self.real.elapsed().as_secs_f64() * 1e3 * self.rate)
    }

    pub(super) fn set_rate(&mut self, rate: f64) {
        if rate != self.rate {
            (self.sim, self.real, self.rate) = (self.now(), Instant::now(), rate);
        }
    }

    /// When engine time will be `at`, or in an hour if that is further off.
    pub(super) fn real(&self, at: SimTime) -> Instant {
        const FAR: Duration = Duration::from_secs(3600);
        let wait = Duration::try_from_secs_f64(at.ms_since(self.sim) / 1e3 / self.rate);
        self.real.checked_add(wait.unwrap_or(FAR)).unwrap_or_else(|| Instant::now() + FAR)
    }

    /// How long an engine's stretch of time is in reality.
    pub(super) fn real_seconds(&self, ms: f64) -> f64 {
        ms / 1e3 / self.rate
    }
}
