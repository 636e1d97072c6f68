//! Our router, watched while a level is measured: how even its workers' load is, what it expected of their caches, and what
//! it takes itself.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::MissedTickBehavior;
use tokio_util::task::AbortOnDropHandle;

use crate::gauges::{self, Gauge};
use crate::http::Admin;
use crate::measure::Evenness;
use crate::results::LevelFigures;

const EVERY: Duration = Duration::from_secs(1);
const MOST_BYTES: usize = 8 << 20;

pub(super) struct Watch {
    seen: Arc<Mutex<Seen>>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug, Default)]
struct Seen {
    evenness: Evenness,
    first: Option<Totals>,
    last: Option<Totals>,
}

/// What only ever grows; none where the router does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Totals {
    requests: Option<f64>,
    cpu_s: Option<f64>,
    expected_tokens: Option<f64>,
    reported_tokens: Option<f64>,
}

impl Watch {
    pub(super) fn start(admin: &Admin) -> anyhow::Result<Self> {
        let (http, url) = (admin.http(EVERY)?, format!("{}/metrics", admin.url));
        let seen = Arc::new(Mutex::new(Seen::default()));
        let to = seen.clone();
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                // Whoever does not answer in time is asked again: the level is what counts, not its every second.
                if let Ok(text) = http.get(&url, MOST_BYTES).await {
                    to.lock().look(&gauges::read(&String::from_utf8_lossy(&text)));
                }
            }
        });
        Ok(Self { seen, _task: AbortOnDropHandle::new(task) })
    }

    /// `by_cache`: whether the mode expects anything of caches.
    pub(super) fn figures(&self, by_cache: bool) -> LevelFigures {
        self.seen.lock().figures(by_cache)
    }
}

impl Seen {
    fn look(&mut self, gauges: &[Gauge]) {
        let inflight = gauges.iter().filter(|gauge| gauge.name == "dynamo_component_inflight_requests");
        let counts: Vec<usize> = inflight.map(|gauge| gauge.value.max(0.0) as usize).collect();
        if !counts.is_empty() {
            self.evenness.see(counts.into_iter());
        }
        let sum = |name: &str| gauges::sum(gauges, name);
        let totals = Totals {
            requests: sum("dynamo_frontend_requests_total"),
            cpu_s: sum("process_cpu_seconds_total"),
            expected_tokens: sum("kvlane_overlap_predicted_tokens_total"),
            reported_tokens: sum("kvlane_overlap_reported_tokens_total"),
        };
        self.first.get_or_insert(totals);
        self.last = Some(totals);
    }

    fn figures(&mut self, by_cache: bool) -> LevelFigures {
        let evenness = self.evenness.figures();
        let (Some(first), Some(last)) = (self.first, self.last) else { return evenness };
        let grown =
            |of: fn(&Totals) -> Option<f64>| Some(of(&last)? - of(&first)?).filter(|grown| *grown > 0.0);
        let per_request = || Some(grown(|totals| totals.cpu_s)? / grown(|totals| totals.requests)?);
        let off = || {
            let reported = grown(|totals| totals.reported_tokens)?;
            Some(100.0 * (grown(|totals| totals.expected_tokens).unwrap_or(0.0) / reported - 1.0))
        };
        LevelFigures {
            router_cpu_ms: per_request().map(|seconds| seconds * 1e3),
            expected_off_pct: off().filter(|_| by_cache),
            ..evenness
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_what_grew_and_how_even_it_was() {
        let look = |[cpu, requests, expected, reported]: [u32; 4], loads: [u32; 2]| {
            gauges::read(&format!(
                "process_cpu_seconds_total {cpu}\n\
                 dynamo_frontend_requests_total{{status=\"success\"}} {requests}\n\
                 kvlane_overlap_predicted_tokens_total{{worker=\"a\"}} {expected}\n\
                 kvlane_overlap_reported_tokens_total{{worker=\"a\"}} {reported}\n\
                 dynamo_component_inflight_requests{{worker=\"a\"}} {}\n\
                 dynamo_component_inflight_requests{{worker=\"b\"}} {}\n",
                loads[0], loads[1]
            ))
        };
        let mut seen = Seen::default();
        assert_eq!(seen.figures(true), LevelFigures::default());
        seen.look(&look([10, 100, 1000, 1000], [2, 2]));
        assert_eq!(seen.figures(true).router_cpu_ms, None);
        seen.look(&look([12, 300, 2980, 3000], [1, 5]));
        let figures = seen.figures(true);
        assert_eq!(figures.router_cpu_ms, Some(10.0));
        assert!(figures.expected_off_pct.is_some_and(|off| (off + 1.0).abs() < 1e-9));
        assert_eq!(figures.inflight_spread_max, Some(4.0));
        assert_eq!(seen.figures(false).expected_off_pct, None);
        // One that expects nothing where there is something is off by all of it.
        let mut blind = Seen::default();
        blind.look(&look([0, 0, 0, 1000], [0, 0]));
        blind.look(&look([1, 1, 0, 2000], [0, 0]));
        assert_eq!(blind.figures(true).expected_off_pct, Some(-100.0));
        // A router that says nothing of all this is one, too.
        let mut silent = Seen::default();
        silent.look(&[]);
        silent.look(&[]);
        assert_eq!(silent.figures(true), LevelFigures::default());
    }
}
