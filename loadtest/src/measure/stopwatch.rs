//! One request, from when it was due to its last token.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// How a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorClass {
    /// The endpoint could not be reached.
    Connect,
    /// It refused with a 4xx.
    Refused,
    /// It is overloaded: 429 or 503.
    Overloaded,
    /// Another 5xx.
    Server,
    /// It did not answer, or not end, in time.
    Timeout,
    /// The answer broke off.
    BrokenOff,
    /// The answer could not be read.
    Malformed,
}

impl ErrorClass {
    pub const ALL: [Self; 7] = [
        Self::Connect,
        Self::Refused,
        Self::Overloaded,
        Self::Server,
        Self::Timeout,
        Self::BrokenOff,
        Self::Malformed,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Refused => "refused",
            Self::Overloaded => "overloaded",
            Self::Server => "server",
            Self::Timeout => "timeout",
            Self::BrokenOff => "broken_off",
            Self::Malformed => "malformed",
        }
    }

    /// Of an answer's status, which is none of success.
    pub fn of_status(status: u16) -> Self {
        match status {
            429 | 503 => Self::Overloaded,
            500.. => Self::Server,
            _ => Self::Refused,
        }
    }
}

/// Runs while a request does.
#[derive(Clone, Debug)]
pub struct Stopwatch {
    due: Instant,
    sent: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
    tokens: u64,
    gaps_s: Vec<f32>,
}

/// What came of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Sent so much later than it was due.
    pub send_lag_s: f64,
    /// From when it was due to its first token; none when there was none.
    pub ttft_s: Option<f64>,
    /// Time per token after the first; none with fewer than two.
    pub tpot_s: Option<f64>,
    /// From when it was due to its last token.
    pub e2e_s: f64,
    /// Between neighbouring chunks, which may carry several tokens each; and the mean between tokens.
    #[serde(skip)]
    pub gaps_s: Vec<f32>,
    pub itl_mean_s: Option<f64>,
    pub output_tokens: u64,
    pub prompt_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub error: Option<ErrorClass>,
}

impl Stopwatch {
    /// For a request that was due then and is sent now.
    pub fn start(due: Instant, sent: Instant) -> Self {
        Self { due, sent, first: None, last: None, tokens: 0, gaps_s: Vec::new() }
    }

    pub fn has_begun(&self) -> bool {
        self.first.is_some()
    }

    /// A chunk with so many tokens came.
    pub fn tokens(&mut self, count: u64, now: Instant) {
        if count == 0 {
            return;
        }
        match self.last {
            None => self.first = Some(now),
            Some(last) => self.gaps_s.push((now - last).as_secs_f32()),
        }
        self.last = Some(now);
        self.tokens += count;
    }

    /// It is over. `counted` is the server's own count of the answer's tokens, which is better than ours.
    pub fn finish(self, now: Instant, counted: Option<u64>, error: Option<ErrorClass>) -> Measured {
        let output_tokens = counted.unwrap_or(self.tokens);
        let since_due = |at: Instant| at.saturating_duration_since(self.due).as_secs_f64();
        let ended = if error.is_some() { now } else { self.last.unwrap_or(now) };
        let ttft_s = self.first.map(since_due);
        let generating = self.first.map(|first| ended.saturating_duration_since(first));
        let tpot = |generating: Duration| {
            (output_tokens > 1).then(|| generating.as_secs_f64() / (output_tokens - 1) as f64)
        };
        let between = match (self.first, self.last) {
            (Some(first), Some(last)) if output_tokens > 1 && last > first => Some(last - first),
            _ => None,
        };
        Measured {
            send_lag_s: self.sent.saturating_duration_since(self.due).as_secs_f64(),
            ttft_s,
            tpot_s: generating.filter(|_| error.is_none()).and_then(tpot),
            e2e_s: since_due(ended),
            itl_mean_s: between.map(|time| time.as_secs_f64() / (output_tokens - 1) as f64),
            gaps_s: self.gaps_s,
            output_tokens,
            prompt_tokens: None,
            cached_tokens: None,
            error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: Option<f64>, expected: f64) {
        assert!(found.is_some_and(|found| (found - expected).abs() < 1e-6), "{found:?}, expected {expected}");
    }

    /// A hand-made stream: due at 0, sent at 20 ms, tokens at 120, 150, 150+30 (two in one chunk), 240 ms.
    #[tokio::test(start_paused = true)]
    async fn times_are_those_of_the_definitions() {
        let due = Instant::now();
        let at = |ms: u64| due + Duration::from_millis(ms);
        let mut watch = Stopwatch::start(due, at(20));
        for (ms, tokens) in [(120, 1), (150, 1), (180, 2), (240, 1)] {
            watch.tokens(tokens, at(ms));
        }
        watch.tokens(0, at(250));
        let measured = watch.clone().finish(at(260), None, None);
        near(Some(measured.send_lag_s), 0.020);
        near(measured.ttft_s, 0.120);
        // (240 - 120) / (5 - 1)
        near(measured.tpot_s, 0.030);
        near(Some(measured.e2e_s), 0.240);
        let gaps: Vec<f32> = measured.gaps_s.clone();
        assert_eq!(gaps.len(), 3);
        assert!(
            gaps.iter().zip([0.030, 0.030, 0.060]).all(|(found, due)| (found - due).abs() < 1e-6),
            "{gaps:?}"
        );
        near(measured.itl_mean_s, 0.030);
        assert_eq!(measured.output_tokens, 5);
        // The server counts better.
        near(watch.clone().finish(at(260), Some(7), None).tpot_s, 0.020);
        near(watch.clone().finish(at(260), Some(7), None).itl_mean_s, 0.020);
        // One token has a first and no next.
        let mut one = Stopwatch::start(due, due);
        one.tokens(1, at(10));
        let one = one.finish(at(10), None, None);
        assert_eq!((one.ttft_s, one.tpot_s, one.itl_mean_s), (Some(0.010), None, None));
        // What fails has a beginning, perhaps, and an end.
        let failed = watch.finish(at(900), None, Some(ErrorClass::BrokenOff));
        assert_eq!((failed.tpot_s, failed.e2e_s), (None, 0.9));
        let nothing = Stopwatch::start(due, due).finish(at(5), None, Some(ErrorClass::Connect));
        assert_eq!((nothing.ttft_s, nothing.output_tokens), (None, 0));
    }

    #[test]
    fn statuses_have_classes() {
        let classes = [400, 404, 429, 500, 503, 504].map(ErrorClass::of_status);
        use ErrorClass::{Overloaded, Refused, Server};
        assert_eq!(classes, [Refused, Refused, Overloaded, Server, Overloaded, Server]);
        let names: std::collections::BTreeSet<&str> =
            ErrorClass::ALL.iter().map(|class| class.name()).collect();
        assert_eq!(names.len(), ErrorClass::ALL.len());
    }
}
