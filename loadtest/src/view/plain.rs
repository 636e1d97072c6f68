//! A line every few seconds.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::live::{Live, Phase};
use crate::results::shown;

#[derive(Debug)]
pub struct Plain {
    live: Arc<Live>,
    last: Instant,
}

const EVERY: Duration = Duration::from_secs(5);

impl Plain {
    pub(super) fn open(live: Arc<Live>) -> Self {
        Self { live, last: Instant::now() }
    }

    pub(super) fn tell(&mut self, phase: Phase) -> bool {
        if self.last.elapsed() >= EVERY {
            self.last = Instant::now();
            // Nobody may be listening any more.
            let _ = writeln!(std::io::stderr(), "{}", line(&self.live, phase));
        }
        true
    }
}

/// How it goes, in a line.
pub(super) fn line(live: &Live, phase: Phase) -> String {
    let status = live.status();
    let last = status.last_minute;
    format!(
        "{}, {:.0} s left: {} conversations, {} requests, last minute TTFT p50/p95 {}/{} ms, ITL {}/{} ms, {} tokens/s, cached {} %, {} errors",
        phase.name(),
        phase.left().as_secs_f64(),
        status.active_conversations,
        status.requests,
        shown(last.ttft_p50_ms, 0),
        shown(last.ttft_p95_ms, 0),
        shown(last.itl_p50_ms, 0),
        shown(last.itl_p95_ms, 0),
        shown(last.tops, 0),
        shown(last.hit_pct, 0),
        status.errors,
    )
}
