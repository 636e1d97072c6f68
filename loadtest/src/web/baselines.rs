//! What live figures are compared with: the reference deployment's recorded ones, or a sweep of the user's.

use std::path::Path;

use anyhow::{Context, ensure};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::measure::Objective;
use crate::report::RECORDED;
use crate::results::{LevelFigures, Results};

/// One mode at one level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Figures {
    pub(super) ttft_p50_ms: Option<f64>,
    pub(super) ttft_p95_ms: Option<f64>,
    pub(super) tpot_p50_ms: Option<f64>,
    pub(super) tpot_p95_ms: Option<f64>,
    pub(super) itl_p50_ms: Option<f64>,
    pub(super) itl_p95_ms: Option<f64>,
    pub(super) e2e_p50_s: Option<f64>,
    pub(super) e2e_p95_s: Option<f64>,
    pub(super) tops: Option<f64>,
    pub(super) rps: Option<f64>,
    pub(super) hit_pct: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) concurrency: usize,
    pub(super) rr: Figures,
    pub(super) kv: Figures,
}

/// Which of the modes stand in the two columns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Modes {
    pub(super) rr: String,
    pub(super) kv: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Promise {
    pub(super) ttft_ms: f64,
    pub(super) tpot_ms: f64,
}

impl From<Objective> for Promise {
    fn from(objective: Objective) -> Self {
        Self { ttft_ms: objective.ttft_s * 1e3, tpot_ms: objective.tpot_s * 1e3 }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Table {
    pub(super) source: &'static str,
    pub(super) about: String,
    pub(super) objective: Promise,
    pub(super) modes: Modes,
    pub(super) rows: Vec<Row>,
    /// Whether it is another than the one it began with.
    pub(super) replaced: bool,
}

/// A table, and the one it goes back to.
#[derive(Debug)]
pub struct Baselines {
    first: Table,
    now: RwLock<Table>,
}

/// Modes that stand for routing by cache, the better known first.
const KV_MODES: [&str; 4] = ["kvlane", "kvlane_session", "dynamo", "kv"];
const MOST_LEVELS: usize = 500;
const RECORDED_ABOUT: &str = "Recorded: six sweeps, 300 s windows, 3 × H200, 70B model in FP8";

#[derive(Deserialize)]
struct Recording {
    slo: Option<Slo>,
    levels: Vec<usize>,
    rr: Map<String, Value>,
    kv: Map<String, Value>,
}

/// What was promised when it was recorded.
#[derive(Clone, Copy, Deserialize)]
struct Slo {
    ttft_p95_ms: f64,
    tpot_p95_ms: f64,
}

fn few(levels: usize) -> anyhow::Result<()> {
    ensure!((1..=MOST_LEVELS).contains(&levels), "there are {levels} levels, expected 1 to {MOST_LEVELS}");
    Ok(())
}

impl Recording {
    fn table(&self, source: &'static str, about: &str) -> anyhow::Result<Table> {
        few(self.levels.len())?;
        let figures = |of: &Map<String, Value>, at: usize| {
            // What was recorded between tokens is what is called time per token elsewhere.
            let mut row: Map<String, Value> =
                of.iter().map(|(key, values)| (key.clone(), values[at].clone())).collect();
            for (tpot, itl) in [("tpot_p50_ms", "itl_p50_ms"), ("tpot_p95_ms", "itl_p95_ms")] {
                let value = of.get(itl).map(|values| values[at].clone()).unwrap_or_default();
                row.entry(tpot).or_insert(value);
            }
            serde_json::from_value::<Figures>(Value::Object(row)).context("recorded figures")
        };
        let rows = self.levels.iter().enumerate().map(|(at, concurrency)| {
            Ok(Row { concurrency: *concurrency, rr: figures(&self.rr, at)?, kv: figures(&self.kv, at)? })
        });
        Ok(Table {
            source,
            about: about.to_owned(),
            objective: self.slo.map_or_else(
                || Objective::default().into(),
                |slo| Promise { ttft_ms: slo.ttft_p95_ms, tpot_ms: slo.tpot_p95_ms },
            ),
            modes: Modes { rr: "round_robin".to_owned(), kv: "kv".to_owned() },
            rows: rows.collect::<anyhow::Result<_>>()?,
            replaced: false,
        })
    }
}

fn recorded() -> Table {
    let recording: Recording = serde_json::from_str(RECORDED).expect("an embedded file that tests read");
    recording.table("recorded", RECORDED_ABOUT).expect("an embedded file that tests read")
}

impl From<&LevelFigures> for Figures {
    fn from(of: &LevelFigures) -> Self {
        Self {
            ttft_p50_ms: of.ttft_p50_ms,
            ttft_p95_ms: of.ttft_p95_ms,
            tpot_p50_ms: of.itl_p50_ms,
            tpot_p95_ms: of.itl_p95_ms,
            itl_p50_ms: of.itl_p50_ms,
            itl_p95_ms: of.itl_p95_ms,
            e2e_p50_s: of.e2e_p50_s,
            e2e_p95_s: of.e2e_p95_s,
            tops: of.tops,
            rps: of.rps,
            hit_pct: of.hit_pct,
        }
    }
}

/// The rows of a sweep's first set, or of a recording in the form of ours.
fn parsed(text: &str) -> anyhow::Result<Table> {
    let value: Value = serde_json::from_str(text).context("the file is no JSON")?;
    if value.get("schema").is_none() && value.get("levels").is_some() {
        let recording: Recording = serde_json::from_value(value).context("a recording")?;
        return recording.table("file", "Figures of a file");
    }
    let results = Results::parse(text)?;
    let set = results.sets.first().context("the file has no sets, expected one")?;
    ensure!(
        set.levels_are == "conversations at a time",
        "levels are {}, expected conversations at a time",
        set.levels_are
    );
    let modes = set.modes();
    let named = |wanted: &[&'static str]| wanted.iter().find(|mode| modes.contains(mode)).copied();
    let rr = named(&["round_robin"])
        .with_context(|| format!("modes are {}, expected round_robin among them", modes.join(", ")))?;
    let kv = named(&KV_MODES).with_context(|| {
        format!("modes are {}, expected one of {} among them", modes.join(", "), KV_MODES.join(", "))
    })?;
    few(set.levels().len())?;
    let figures = |mode: &str, level: usize| {
        set.mean(mode, level).map_or_else(Figures::default, |(mean, _)| Figures::from(&mean))
    };
    let row = |level: &usize| Row { concurrency: *level, rr: figures(rr, *level), kv: figures(kv, *level) };
    Ok(Table {
        source: "sweep",
        about: format!("{} ({}): {rr} and {kv}", set.name, results.source.name()),
        objective: results.objective.into(),
        modes: Modes { rr: rr.to_owned(), kv: kv.to_owned() },
        rows: set.levels().iter().map(row).collect(),
        replaced: false,
    })
}

impl Baselines {
    /// The recorded ones, or those of a file.
    pub fn new(file: Option<&Path>) -> anyhow::Result<Self> {
        let first = match file {
            Some(path) => {
                let at = || path.display().to_string();
                parsed(&std::fs::read_to_string(path).with_context(at)?).with_context(at)?
            }
            None => recorded(),
        };
        Ok(Self { now: RwLock::new(first.clone()), first })
    }

    pub(super) fn table(&self) -> Table {
        self.now.read().clone()
    }

    pub(super) fn replace(&self, text: &str) -> anyhow::Result<Table> {
        let table = Table { replaced: true, ..parsed(text)? };
        *self.now.write() = table.clone();
        Ok(table)
    }

    /// Back to what it began with.
    pub(super) fn restore(&self) -> Table {
        *self.now.write() = self.first.clone();
        self.first.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_figures_are_there_and_a_sweep_takes_their_place() {
        let baselines = Baselines::new(None).unwrap();
        let table = baselines.table();
        assert_eq!((table.rows.len(), table.rows[0].concurrency), (7, 60));
        assert_eq!((table.rows[0].rr.ttft_p95_ms, table.rows[0].kv.ttft_p95_ms), (Some(655.0), Some(446.0)));
        assert_eq!((table.rows[6].rr.tpot_p95_ms, table.rows[6].rr.itl_p95_ms), (Some(54.0), Some(54.0)));
        let sweep = serde_json::to_string(&crate::results::tests::sweep()).unwrap();
        let replaced = baselines.replace(&sweep).unwrap();
        assert_eq!((replaced.modes.kv.as_str(), replaced.rows.len(), replaced.replaced), ("kvlane", 3, true));
        assert_eq!(replaced.rows[0].rr.ttft_p95_ms, Some(510.0));
        assert_eq!(baselines.restore(), table);
        let own = RECORDED.replacen("600", "700", 1);
        let replaced = baselines.replace(&own).unwrap();
        assert_eq!((replaced.source, replaced.objective.ttft_ms), ("file", 700.0));
        baselines.restore();
        let many = format!("{{\"levels\": [{}1], \"rr\": {{}}, \"kv\": {{}}}}", "1,".repeat(MOST_LEVELS));
        for (text, why) in [
            (many.as_str(), "there are 501 levels, expected 1 to 500"),
            ("nonsense", "the file is no JSON"),
            ("{\"schema\": \"kvlane-load.run/1\"}", "expected kvlane-load.sweep/1"),
        ] {
            let refused = format!("{:#}", baselines.replace(text).unwrap_err());
            assert!(refused.contains(why), "{refused}");
        }
        assert_eq!(baselines.table(), table, "what is refused changes nothing");
    }
}
