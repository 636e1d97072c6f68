//! What a sweep came to, in a form that is kept: modes × levels × repeats, simulated or measured, one schema for both.

mod figures;

use std::path::Path;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::figures::{Better, LevelFigures, METRICS, Metric, TurnFigures, shown};
use crate::measure::Objective;

/// The form of the file. It grows by fields; a field that changes its meaning makes it `/2`.
pub const SCHEMA: &str = "kvlane-load.sweep/1";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    pub schema: String,
    /// Of the program that made it.
    pub version: String,
    pub source: Source,
    pub objective: Objective,
    pub sets: Vec<Set>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// In virtual time, by simulated engines.
    Simulated,
    /// By a clock, at an endpoint.
    Measured,
}

impl Source {
    pub fn name(self) -> &'static str {
        match self {
            Self::Simulated => "simulated",
            Self::Measured => "measured",
        }
    }
}

/// One workload at one deployment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Set {
    pub name: String,
    pub about: String,
    /// What a level counts.
    pub levels_are: String,
    /// Everything it takes to do it again.
    pub conditions: Value,
    pub cells: Vec<Cell>,
}

/// One mode at one level, once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    pub mode: String,
    pub level: usize,
    /// The seed it began with.
    pub repeat: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figures: Option<LevelFigures>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_turn: Vec<TurnFigures>,
    /// Why the figures are worth nothing, or why there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invalid: Option<String>,
    /// What shows that it was more than the deployment can do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saturated: Option<String>,
    /// The whole report of a measured cell.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub details: Value,
}

impl Results {
    pub fn new(source: Source, objective: Objective, sets: Vec<Set>) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { schema: SCHEMA.to_owned(), version, source, objective, sets }
    }

    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let at = || path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(at)?;
        Self::parse(&text).with_context(at)
    }

    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let value: Value = serde_json::from_str(text)?;
        let schema = value["schema"].as_str().unwrap_or("none");
        ensure!(
            schema == SCHEMA,
            "schema is {schema}, expected {SCHEMA}: a file of sweep or of simulate --json"
        );
        Ok(serde_json::from_value(value)?)
    }

    /// Whole or not at all: what is there before stays until the new one is written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        write_whole(path, &serde_json::to_vec_pretty(self)?)
    }
}

/// Writes beside, then puts it in place.
pub fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    std::fs::write(&beside, bytes)
        .and_then(|()| std::fs::rename(&beside, path))
        .with_context(|| path.display().to_string())
}

/// The path of the first value in which two differ.
pub fn first_difference(one: &Value, other: &Value, at: &str) -> Option<String> {
    match (one, other) {
        (Value::Object(left), Value::Object(right)) => {
            let keys: std::collections::BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            keys.into_iter().find_map(|key| {
                let path = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
                first_difference(
                    left.get(key).unwrap_or(&Value::Null),
                    right.get(key).unwrap_or(&Value::Null),
                    &path,
                )
            })
        }
        _ => (one != other).then(|| at.to_owned()),
    }
}

impl Set {
    /// In the order they first appear.
    pub fn modes(&self) -> Vec<&str> {
        let mut modes: Vec<&str> = Vec::new();
        for cell in &self.cells {
            if !modes.contains(&cell.mode.as_str()) {
                modes.push(&cell.mode);
            }
        }
        modes
    }

    pub fn levels(&self) -> Vec<usize> {
        let mut levels: Vec<usize> = self.cells.iter().map(|cell| cell.level).collect();
        levels.sort_unstable();
        levels.dedup();
        levels
    }

    /// Cells of one mode and level that count.
    pub fn at(&self, mode: &str, level: usize) -> impl Iterator<Item = (&Cell, &LevelFigures)> {
        self.cells
            .iter()
            .filter(move |cell| cell.mode == mode && cell.level == level && cell.invalid.is_none())
            .filter_map(|cell| Some((cell, cell.figures.as_ref()?)))
    }

    /// Their mean, and how many they are; none when there are none.
    pub fn mean(&self, mode: &str, level: usize) -> Option<(LevelFigures, usize)> {
        let figures: Vec<&LevelFigures> = self.at(mode, level).map(|(_, figures)| figures).collect();
        (!figures.is_empty()).then(|| (LevelFigures::mean(&figures), figures.len()))
    }

    /// A level in words: "c = 60" of conversations at a time, else with its unit.
    pub fn level_in_words(&self, level: usize) -> String {
        match self.levels_are.as_str() {
            "conversations at a time" => format!("c = {level}"),
            unit => format!("{level} {unit}"),
        }
    }

    /// What others are compared with: round robin where it is there, else the first.
    pub fn baseline(&self) -> Option<&str> {
        let modes = self.modes();
        modes.iter().find(|mode| **mode == "round_robin").or(modes.first()).copied()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn cell(mode: &str, level: usize, repeat: u64, ttft_p95_ms: f64, tops: f64) -> Cell {
        let figures = LevelFigures {
            ttft_p50_ms: Some(ttft_p95_ms / 2.0),
            ttft_p95_ms: Some(ttft_p95_ms),
            itl_p50_ms: Some(28.0),
            itl_p95_ms: Some(30.0),
            e2e_p50_s: Some(24.0),
            e2e_p95_s: Some(30.0),
            tops: Some(tops),
            rps: Some(2.5),
            hit_pct: Some(90.0),
            ..LevelFigures::default()
        };
        let mode = mode.to_owned();
        let (by_turn, invalid, saturated, details) = (Vec::new(), None, None, Value::Null);
        Cell { mode, level, repeat, figures: Some(figures), by_turn, invalid, saturated, details }
    }

    /// Two modes at three levels, three times; ours is a third below.
    pub(crate) fn sweep() -> Results {
        let mut cells = Vec::new();
        for repeat in 1..=3_u32 {
            for (level, base) in [(60, 500.0), (120, 700.0), (180, 900.0)] {
                let noise = f64::from(repeat) * 5.0;
                let tops = 2000.0 + 5.0 * level as f64 + noise;
                cells.push(cell("round_robin", level, repeat.into(), base + noise, tops));
                cells.push(cell("kvlane", level, repeat.into(), base * 0.66 + noise, tops + 250.0));
            }
        }
        let set = Set {
            name: "test".to_owned(),
            about: "made up".to_owned(),
            levels_are: "conversations at a time".to_owned(),
            conditions: serde_json::json!({"think_s": 0.15}),
            cells,
        };
        Results::new(Source::Simulated, Objective::default(), vec![set])
    }

    #[test]
    fn results_are_kept_whole_and_others_refused() {
        let path = std::env::temp_dir().join(format!("kvlane-results-{}.json", std::process::id()));
        let results = sweep();
        results.write(&path).unwrap();
        assert_eq!(Results::read(&path).unwrap(), results);
        std::fs::write(&path, "{\"schema\": \"kvlane-load.run/1\"}").unwrap();
        let refused = format!("{:#}", Results::read(&path).unwrap_err());
        assert!(refused.contains("schema is kvlane-load.run/1, expected kvlane-load.sweep/1"), "{refused}");
        std::fs::write(&path, "nonsense").unwrap();
        assert!(Results::read(&path).is_err());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_differs_between_two_sweeps_is_named() {
        let one = serde_json::json!({"plan": {"window_s": 300, "levels": [60]}, "url": "a"});
        assert_eq!(first_difference(&one, &one.clone(), ""), None);
        let other = serde_json::json!({"plan": {"window_s": 60, "levels": [60]}, "url": "a"});
        assert_eq!(first_difference(&one, &other, ""), Some("plan.window_s".to_owned()));
        assert_eq!(first_difference(&one, &serde_json::json!({"url": "a"}), ""), Some("plan".to_owned()));
    }

    #[test]
    fn means_leave_out_what_does_not_count() {
        let mut results = sweep();
        let set = &mut results.sets[0];
        let (mean, of) = set.mean("round_robin", 60).unwrap();
        assert_eq!((mean.ttft_p95_ms, of), (Some(510.0), 3));
        set.cells[0].invalid = Some("the generator was busy".to_owned());
        assert_eq!(set.mean("round_robin", 60).unwrap().1, 2);
        assert_eq!(set.mean("round_robin", 61), None);
        assert_eq!((set.modes(), set.levels()), (vec!["round_robin", "kvlane"], vec![60, 120, 180]));
        assert_eq!(set.baseline(), Some("round_robin"));
    }
}
