//! Every number of a simulated run, from defaults, a file and the command line, in that order.

use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use kvlane_engine_adapters::sim::Calibration;
use kvlane_indexer::IndexConfig;
use kvlane_router::scheduling::{Said, Weights};
use serde::{Deserialize, Serialize};

use crate::measure::Objective;

/// More than any setting needs, and little enough that sums of them stay within the clock.
const MOST: f64 = 1e7;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub workers: usize,
    /// How much slower each engine is than its calibration, one number after the other; 1 where there is none.
    pub slowness: Vec<f64>,
    /// Conversations at a time, one level after the other; of other workloads see `workload.kind`.
    pub levels: Vec<usize>,
    pub seeds: usize,
    /// The default lies in the middle of what six seeds give at 100 conversations, where the median between
    /// tokens has two homes.
    pub first_seed: u64,
    /// Before the first level, not counted.
    pub fill_s: f64,
    /// Before each level is measured.
    pub warm_up_s: f64,
    pub window_s: f64,
    /// Snapshots per window; each looks at the last `snapshot_s`.
    pub snapshots: usize,
    pub snapshot_s: f64,
    /// What users are promised: milliseconds to the first token and per token after it.
    pub ttft_slo_ms: f64,
    pub tpot_slo_ms: f64,
    pub router: RouterSettings,
    pub workload: WorkloadSettings,
    pub engine: Calibration,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouterSettings {
    /// Routers that requests are dealt to at random.
    pub count: usize,
    /// How they learn of each other's load.
    pub sharing: Sharing,
    /// How often they do, over NATS.
    pub share_ms: f64,
    /// How often they ask the engines for theirs.
    pub probe_ms: f64,
    /// The modes' own weights when not given.
    pub overlap_weight: Option<f64>,
    pub request_weight: Option<f64>,
    pub waiting_weight: Option<f64>,
    pub home_weight: Option<f64>,
    pub slot_guard: Option<bool>,
    /// Slots the router is told a worker has; those it has when not given.
    pub slots: Option<usize>,
    /// Whether it is told at all, or has to learn from what engines show.
    pub slots_told: bool,
    /// Requests that may wait at a full worker, as a share of its slots; more wait in the router.
    pub overflow: f64,
    pub temperature: f64,
    /// Share of requests placed by load alone, for comparison.
    pub holdout: f64,
    /// Whether engines tell of their caches.
    pub events: bool,
    /// From an engine's step until the index knows of it.
    pub event_lag_ms: f64,
    /// How long a placement counts as cached before events confirm it (0 for not at all), and where none come.
    pub predicted_ttl_s: u32,
    pub approximate_ttl_s: u32,
}

/// How several routers learn of each other's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// They do not.
    Nothing,
    /// By what the engines say they are running.
    Engines,
    /// By telling each other.
    Nats,
}

/// What is asked, and what a level counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkloadKind {
    /// Conversations over a pool of documents, each turn resending everything before it. Levels are conversations.
    Conversations,
    /// Bursts of requests that share most of their prompt, as an agent's sub-tasks do. Levels are bursts a minute.
    Bursts,
    /// Requests of a recorded trace. Levels are percent of its speed.
    Trace,
}

/// When conversations begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArrivalKind {
    /// A new one when one is over. Levels are conversations at a time.
    Closed,
    /// Whether the last ones are over or not. Levels are conversations a minute.
    Poisson,
    Constant,
    Gamma,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadSettings {
    pub kind: WorkloadKind,
    pub arrivals: ArrivalKind,
    /// How uneven gamma arrivals are: below 1 in bunches, 1 as Poisson's, above 1 more regular.
    pub burstiness: f64,
    pub starters: usize,
    /// How much more often the first documents are asked about (Zipf's exponent); 0 for equally often.
    pub zipf: f64,
    /// Share of a document that everybody has; the rest is the conversation's own.
    pub shared: f64,
    pub starter_tokens: (f64, f64),
    pub template_tokens: usize,
    pub question_tokens: (f64, f64),
    pub turns: (usize, usize),
    /// Mean and deviation of the first answer and of later ones, cut to the bounds.
    pub first_answer_tokens: (f64, f64),
    pub answer_tokens: (f64, f64),
    pub answer_bounds: (usize, usize),
    pub think_s: f64,
    /// Conversations that a level begins with are in the middle of it.
    pub steady_start: bool,
    /// Requests of a burst, and tokens of which all and each have their own.
    pub burst: usize,
    pub burst_tokens: (usize, usize),
    /// A trace in Mooncake's form: lines with timestamp, input_length, output_length, hash_ids.
    pub trace: Option<PathBuf>,
    /// Tokens one of its hashes stands for.
    pub trace_block_tokens: usize,
}

impl RouterSettings {
    /// The weights of a mode that has some, and what was said instead.
    pub(super) fn weights(&self, preset: Weights) -> Weights {
        preset.but(Said {
            overlap: self.overlap_weight.map_or(1.0, |weight| weight / preset.overlap),
            request: self.request_weight,
            waiting: self.waiting_weight,
            home: self.home_weight,
            temperature: self.temperature,
            slot_guard: self.slot_guard,
        })
    }
}

impl Settings {
    /// The reference deployment: three engines, levels 60 to 180, six seeds, its delay outside the engine on.
    pub fn reference() -> anyhow::Result<Self> {
        let mut engine = Calibration::preset(Calibration::DEFAULT)?;
        engine.outside.enabled = true;
        Ok(Self {
            workers: 3,
            slowness: Vec::new(),
            levels: (60..=180).step_by(20).collect(),
            seeds: 6,
            first_seed: 3,
            fill_s: 60.0,
            warm_up_s: 60.0,
            window_s: 300.0,
            snapshots: 3,
            snapshot_s: 60.0,
            ttft_slo_ms: 600.0,
            tpot_slo_ms: 60.0,
            router: RouterSettings {
                count: 1,
                sharing: Sharing::Engines,
                share_ms: 50.0,
                probe_ms: 1000.0,
                overlap_weight: None,
                request_weight: None,
                waiting_weight: None,
                home_weight: None,
                slot_guard: None,
                slots: None,
                slots_told: true,
                overflow: 1.0,
                temperature: 0.0,
                holdout: 0.0,
                events: true,
                event_lag_ms: 5.0,
                predicted_ttl_s: 0,
                approximate_ttl_s: 120,
            },
            workload: WorkloadSettings {
                kind: WorkloadKind::Conversations,
                arrivals: ArrivalKind::Closed,
                burstiness: 0.5,
                starters: 10,
                zipf: 0.0,
                shared: 1.0,
                starter_tokens: (3600.0, 4000.0),
                template_tokens: 40,
                question_tokens: (25.0, 95.0),
                turns: (3, 5),
                first_answer_tokens: (760.0, 190.0),
                answer_tokens: (915.0, 150.0),
                answer_bounds: (64, 1024),
                think_s: 0.15,
                steady_start: false,
                burst: 16,
                burst_tokens: (3600, 400),
                trace: None,
                trace_block_tokens: 512,
            },
            engine,
        })
    }

    pub fn objective(&self) -> Objective {
        Objective { ttft_s: self.ttft_slo_ms / 1e3, tpot_s: self.tpot_slo_ms / 1e3 }
    }

    /// What a level counts.
    pub fn levels_are(&self) -> &'static str {
        match (self.workload.kind, self.workload.arrivals) {
            (WorkloadKind::Conversations, ArrivalKind::Closed) => "conversations at a time",
            (WorkloadKind::Conversations, _) => "conversations a minute",
            (WorkloadKind::Bursts, _) => "bursts a minute",
            (WorkloadKind::Trace, _) => "percent of the trace's speed",
        }
    }

    /// These settings with a TOML text laid over them, as in a file or in `router.overlap_weight = 4`.
    pub fn overlaid(&self, text: &str, source: &str) -> anyhow::Result<Self> {
        let mut all = toml::Table::try_from(self).context("settings can be written as TOML")?;
        let over: toml::Table = text
            .parse()
            .map_err(|error: toml::de::Error| anyhow!("{source}: no TOML: {}", one_line(&error)))?;
        lay_over(&mut all, over);
        let settings: Self =
            all.try_into().map_err(|error: toml::de::Error| anyhow!("{source}: {}", one_line(&error)))?;
        settings.validate().with_context(|| source.to_owned())?;
        Ok(settings)
    }

    /// Refuses what cannot be simulated, by name.
    pub fn validate(&self) -> anyhow::Result<()> {
        self.engine.validate()?;
        for (name, value) in [
            ("workers", self.workers),
            ("seeds", self.seeds),
            ("snapshots", self.snapshots),
            ("levels", self.levels.len()),
            ("router.count", self.router.count),
            ("workload.burst", self.workload.burst),
            ("workload.trace_block_tokens", self.workload.trace_block_tokens),
            ("workload.starters", self.workload.starters),
            ("workload.turns", self.workload.turns.0),
            ("workload.answer_bounds", self.workload.answer_bounds.0),
        ] {
            if value == 0 {
                bail!("`{name}` is 0, expected 1 or more");
            }
        }
        for (name, value) in [
            ("fill_s", self.fill_s),
            ("warm_up_s", self.warm_up_s),
            ("snapshot_s", self.snapshot_s),
            ("workload.think_s", self.workload.think_s),
            ("workload.zipf", self.workload.zipf),
            ("router.overlap_weight", self.router.overlap_weight.unwrap_or(0.0)),
            ("router.request_weight", self.router.request_weight.unwrap_or(0.0)),
            ("router.waiting_weight", self.router.waiting_weight.unwrap_or(0.0)),
            ("router.home_weight", self.router.home_weight.unwrap_or(0.0)),
            ("router.overflow", self.router.overflow),
            ("router.temperature", self.router.temperature),
            ("router.event_lag_ms", self.router.event_lag_ms),
        ] {
            if !(0.0..=MOST).contains(&value) {
                bail!("`{name}` is {value}, expected 0 to {MOST}");
            }
        }
        // On a virtual clock something has to take time, or it stands still.
        for (name, value) in [
            ("window_s", self.window_s),
            ("engine.weights_ms", self.engine.weights_ms),
            ("ttft_slo_ms", self.ttft_slo_ms),
            ("tpot_slo_ms", self.tpot_slo_ms),
            ("router.share_ms", self.router.share_ms),
            ("router.probe_ms", self.router.probe_ms),
        ] {
            if !(value > 0.0 && value <= MOST) {
                bail!("`{name}` is {value}, expected more than 0, at most {MOST}");
            }
        }
        for (name, (low, high)) in [
            ("workload.starter_tokens", self.workload.starter_tokens),
            ("workload.question_tokens", self.workload.question_tokens),
        ] {
            if !(1.0 <= low && low <= high && high <= MOST) {
                bail!("`{name}` is [{low}, {high}], expected 1 or more, the smaller first");
            }
        }
        for (name, share) in
            [("router.holdout", self.router.holdout), ("workload.shared", self.workload.shared)]
        {
            if !(0.0..=1.0).contains(&share) {
                bail!("`{name}` is {share}, expected a share between 0 and 1");
            }
        }
        if self.workload.kind != WorkloadKind::Conversations && self.workload.arrivals != ArrivalKind::Closed
        {
            bail!(
                "`workload.arrivals` is of conversations, expected `workload.kind` = 'conversations' with it"
            );
        }
        if let Some(wrong) = self.slowness.iter().find(|slowness| !(0.01..=100.0).contains(*slowness)) {
            bail!("`slowness` has {wrong}, expected 0.01 to 100");
        }
        if !(0.01..=1000.0).contains(&self.workload.burstiness) {
            bail!("`workload.burstiness` is {}, expected 0.01 to 1000", self.workload.burstiness);
        }
        let distinct: std::collections::BTreeSet<&usize> = self.levels.iter().collect();
        if distinct.len() != self.levels.len()
            || self.levels.iter().any(|level| !(1..=1_000_000).contains(level))
        {
            bail!("`levels` is {:?}, expected different numbers from 1 to 1000000", self.levels);
        }
        for (name, value, most) in [
            ("seeds", self.seeds, 10_000),
            ("workload.starters", self.workload.starters, 10_000_000),
            ("workload.burst", self.workload.burst, 256),
        ] {
            if value > most {
                bail!("`{name}` is {value}, expected at most {most}");
            }
        }
        for (name, (mean, deviation)) in [
            ("workload.first_answer_tokens", self.workload.first_answer_tokens),
            ("workload.answer_tokens", self.workload.answer_tokens),
        ] {
            if !((0.0..=MOST).contains(&mean) && (0.0..=MOST).contains(&deviation)) {
                bail!("`{name}` is [{mean}, {deviation}], expected 0 to {MOST} each");
            }
        }
        if (self.workload.kind == WorkloadKind::Trace) != self.workload.trace.is_some() {
            bail!("`workload.trace` and `workload.kind` = 'trace' go together, expected both or neither");
        }
        let (workers, most) = (self.workers, IndexConfig::default().max_workers);
        if workers > most {
            bail!("`workers` is {workers}, expected at most {most}");
        }
        let ((few, many), (short, long)) = (self.workload.turns, self.workload.answer_bounds);
        if few > many || short > long {
            bail!("`workload.turns` and `workload.answer_bounds` go from the smaller to the larger");
        }
        let per_turn = self.workload.question_tokens.1 + long as f64;
        let conversation =
            self.workload.starter_tokens.1 + self.workload.template_tokens as f64 + many as f64 * per_turn;
        let (shared, own) = self.workload.burst_tokens;
        if shared.saturating_add(own) == 0 {
            bail!("`workload.burst_tokens` is [0, 0], expected some");
        }
        let longest = match self.workload.kind {
            WorkloadKind::Bursts => shared as f64 + own as f64 + long as f64,
            WorkloadKind::Conversations | WorkloadKind::Trace => conversation,
        };
        let (blocks, tokens) = (self.engine.kv_blocks, self.engine.block_tokens);
        if longest > (blocks as f64 - 1.0) * tokens as f64 {
            bail!(
                "`engine.kv_blocks` is {blocks}, expected room for the longest request, {longest:.0} tokens in blocks of {tokens}"
            );
        }
        Ok(())
    }
}

/// What is wrong, without the excerpt that a terminal would want.
fn one_line(error: &toml::de::Error) -> String {
    error.message().trim_end().lines().collect::<Vec<_>>().join("; ")
}

fn lay_over(all: &mut toml::Table, over: toml::Table) {
    for (key, value) in over {
        match (all.get_mut(&key), value) {
            (Some(toml::Value::Table(below)), toml::Value::Table(above)) => lay_over(below, above),
            // A whole number is as good as one with a point where one is expected.
            (Some(below @ toml::Value::Float(_)), toml::Value::Integer(whole)) => {
                *below = toml::Value::Float(whole as f64);
            }
            (_, value) => drop(all.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::mode::Mode;
    use super::*;

    #[test]
    fn settings_can_be_laid_over_and_are_checked() {
        let settings = Settings::reference().unwrap();
        let changed = settings.overlaid("router.overlap_weight = 4\nengine.max_batch = 32", "--set").unwrap();
        assert_eq!((changed.router.overlap_weight, changed.engine.max_batch), (Some(4.0), 32));
        let refused = |text: &str| format!("{:#}", settings.overlaid(text, "lab.toml").unwrap_err());
        assert!(refused("router.overlap_wait = 4").contains("unknown field `overlap_wait`"));
        assert_eq!(refused("workers = 0"), "lab.toml: `workers` is 0, expected 1 or more");
        assert!(refused("engine.max_batch = 0").contains("`max_batch` is 0, expected 1 or more"));
        assert!(refused("engine.kv_blocks = 10").contains("expected room for the longest request"));
        let burst = "workload.kind = 'bursts'\nworkload.burst_tokens = [700000, 0]";
        assert!(refused(burst).contains("expected room for the longest request"));
        assert!(refused("levels = [60, 60]").contains("expected different numbers"));
        assert!(refused("levels = [0]").contains("expected different numbers from 1"));
        assert!(refused("workload.starter_tokens = [10.0, 5.0]").contains("the smaller first"));
        for odd in [
            "window_s = 0",
            "window_s = inf",
            "fill_s = nan",
            "workers = 5000",
            "router.overlap_weight = inf",
        ] {
            assert!(refused(odd).contains("expected"), "{odd}");
        }
        assert!(refused("workers =").starts_with("lab.toml: no TOML: "));
        let unknown = "kv".parse::<Mode>().unwrap_err().to_string();
        assert!(unknown.starts_with("mode is `kv`, expected one of round_robin, "), "{unknown}");
    }
}
