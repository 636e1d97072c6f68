//! The figures of a level, each declared once: its name in files, its title, its unit, and which way is better.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    Lower,
    Higher,
    /// It says how things were, not how good.
    Neither,
}

#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub key: &'static str,
    pub title: &'static str,
    pub unit: &'static str,
    pub better: Better,
    /// Decimals that mean something.
    pub digits: usize,
    pub of: fn(&LevelFigures) -> Option<f64>,
}

macro_rules! figures {
    ($($(#[doc = $doc:literal])* $key:ident: $title:literal, $unit:literal, $better:ident, $digits:literal;)*) => {
        /// One level; what could not be seen is none.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct LevelFigures {
            $(#[doc = $title] $(#[doc = $doc])* #[serde(skip_serializing_if = "Option::is_none")] pub $key: Option<f64>,)*
        }

        pub const METRICS: &[Metric] = &[$(Metric {
            key: stringify!($key), title: $title, unit: $unit, better: Better::$better, digits: $digits,
            of: |figures| figures.$key,
        },)*];

        impl LevelFigures {
            /// Of those that have it, figure by figure.
            pub fn mean(of: &[&Self]) -> Self {
                Self { $($key: mean(of.iter().filter_map(|figures| figures.$key)),)* }
            }

            /// What is known here, and else there.
            pub fn or(self, other: Self) -> Self {
                Self { $($key: self.$key.or(other.$key),)* }
            }
        }
    };
}

figures! {
    ttft_p50_ms: "TTFT p50", "ms", Lower, 0;
    ttft_p95_ms: "TTFT p95", "ms", Lower, 0;
    /// Inter-token latency is each request's mean, not the raw gaps.
    itl_p50_ms: "ITL p50", "ms", Lower, 1;
    itl_p95_ms: "ITL p95", "ms", Lower, 1;
    e2e_p50_s: "E2E p50", "s", Lower, 1;
    e2e_p95_s: "E2E p95", "s", Lower, 1;
    tops: "output tokens", "/s", Higher, 1;
    rps: "requests", "/s", Higher, 2;
    /// Of prompt tokens.
    hit_pct: "cached", "%", Higher, 1;
    goodput_pct: "within objective", "%", Higher, 1;
    error_pct: "failed", "%", Lower, 1;
    requests: "requests counted", "", Neither, 0;
    /// Most requests on a worker less least, looked at every second.
    inflight_spread_p95: "spread p95", "", Lower, 1;
    inflight_spread_max: "spread max", "", Lower, 0;
    /// The busiest worker's requests over the mean.
    inflight_skew: "skew", "x", Lower, 2;
    /// In an engine, for a slot.
    queue_ms_mean: "wait mean", "ms", Lower, 1;
    queue_ms_worst: "wait worst 15 s", "ms", Lower, 0;
    acceptance_pct: "drafts accepted", "%", Higher, 1;
    tokens_per_step: "tokens per step", "", Higher, 2;
    /// Tokens the router expected chosen workers to have cached, over those they then reported; too much and too little add up.
    expected_off_pct: "cache expected, off by", "%", Neither, 2;
    /// Of turns that have others before them.
    ttft_again_p50_ms: "TTFT p50, turn 2+", "ms", Lower, 0;
    ttft_again_p95_ms: "TTFT p95, turn 2+", "ms", Lower, 0;
    router_cpu_ms: "router CPU per request", "ms", Lower, 2;
}

/// One turn of a conversation at one level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TurnFigures {
    /// From 1 on.
    pub turn: usize,
    pub requests: u64,
    pub prompt_tokens: Option<f64>,
    pub output_tokens: Option<f64>,
    pub ttft_p50_ms: Option<f64>,
    pub ttft_p95_ms: Option<f64>,
    pub e2e_p50_s: Option<f64>,
    pub hit_pct: Option<f64>,
}

impl TurnFigures {
    /// Of one turn.
    pub fn mean(of: &[&Self]) -> Self {
        let each = |figure: fn(&Self) -> Option<f64>| mean(of.iter().filter_map(|one| figure(one)));
        Self {
            turn: of.first().map_or(0, |one| one.turn),
            requests: of.iter().map(|one| one.requests).sum(),
            prompt_tokens: each(|one| one.prompt_tokens),
            output_tokens: each(|one| one.output_tokens),
            ttft_p50_ms: each(|one| one.ttft_p50_ms),
            ttft_p95_ms: each(|one| one.ttft_p95_ms),
            e2e_p50_s: each(|one| one.e2e_p50_s),
            hit_pct: each(|one| one.hit_pct),
        }
    }
}

/// A figure, or a dash.
pub fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "—".to_owned(), |value| format!("{value:.digits$}"))
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0.0);
    values.for_each(|value| (sum, count) = (sum + value, count + 1.0));
    (count > 0.0).then(|| sum / count)
}
