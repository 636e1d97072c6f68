//! Whether the generator itself kept up. A run in which it did not says nothing of the endpoint.

use std::time::Duration;

use kvlane_engine_adapters::process;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::task::AbortOnDropHandle;

use crate::measure::Times;

/// How late a timer may be for ninety-nine of a hundred; a request twice that.
pub const LAG_LIMIT: Duration = Duration::from_millis(25);
const LOOK: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub struct SelfCheck {
    seen: Arc<Mutex<Seen>>,
    limit_s: f64,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug)]
struct Seen {
    late: Times,
    since: Instant,
    cpu_before_s: f64,
}

impl Seen {
    fn start() -> Self {
        Self { late: Times::default(), since: Instant::now(), cpu_before_s: cpu_seconds() }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SelfReport {
    /// How late timers were, in seconds.
    pub timer_lag_p99_s: f64,
    /// How late requests were sent.
    pub send_lag_p99_s: f64,
    /// Cores this process kept busy.
    pub cpu_cores: f64,
    /// What makes the run worthless; none when it is fine.
    pub invalid: Option<String>,
}

impl SelfCheck {
    /// More than `limit` late is too late.
    pub fn start(limit: Duration) -> Self {
        let seen = Arc::new(Mutex::new(Seen::start()));
        let kept = seen.clone();
        let watching = async move {
            let mut ticks = tokio::time::interval(LOOK);
            // Every tick that was missed counts with its own lateness: one long stall is many late ones.
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            loop {
                let due = ticks.tick().await;
                kept.lock().late.add(due.elapsed().as_secs_f64());
            }
        };
        Self { seen, limit_s: limit.as_secs_f64(), _task: AbortOnDropHandle::new(tokio::spawn(watching)) }
    }

    /// Counts from here on.
    pub fn reset(&self) {
        *self.seen.lock() = Seen::start();
    }

    /// `send_lag_p99_s` is the run's own.
    pub fn report(&self, send_lag_p99_s: f64) -> SelfReport {
        let seen = self.seen.lock();
        let timer_lag_p99_s = seen.late.quantiles().p99;
        let elapsed = seen.since.elapsed().as_secs_f64().max(1e-3);
        let ms = |seconds: f64| seconds * 1e3;
        let (late_timer_s, late_request_s) = (self.limit_s, 2.0 * self.limit_s);
        let invalid = if timer_lag_p99_s > late_timer_s {
            Some(format!(
                "the generator was too busy: timers were {:.1} ms late (p99), expected at most {:.0}",
                ms(timer_lag_p99_s),
                ms(late_timer_s)
            ))
        } else if send_lag_p99_s > late_request_s {
            Some(format!(
                "requests were sent {:.1} ms late (p99), expected at most {:.0}",
                ms(send_lag_p99_s),
                ms(late_request_s)
            ))
        } else {
            None
        };
        let cpu_cores = ((cpu_seconds() - seen.cpu_before_s) / elapsed).max(0.0);
        SelfReport { timer_lag_p99_s, send_lag_p99_s, cpu_cores, invalid }
    }
}

/// Processor time of this process so far; 0 where /proc does not tell.
fn cpu_seconds() -> f64 {
    process::cpu_seconds("self").unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_run_in_time_is_fine() {
        let check = SelfCheck::start(LAG_LIMIT);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(check.report(0.001).invalid, None);
        assert!(
            check.report(0.2).invalid.is_some_and(|why| why.contains("sent 200.0 ms late (p99), expected"))
        );
    }

    /// A generator that stands still now and then is late all that time, not once.
    #[tokio::test]
    async fn a_run_that_stalls_is_not() {
        let check = SelfCheck::start(LAG_LIMIT);
        tokio::time::sleep(Duration::from_millis(300)).await;
        std::thread::sleep(Duration::from_millis(200));
        tokio::time::sleep(Duration::from_millis(300)).await;
        let report = check.report(0.0);
        assert!(report.invalid.is_some_and(|why| why.contains("the generator was too busy")));
        assert!(cpu_seconds() >= 0.0 && report.cpu_cores < 64.0);
    }
}
