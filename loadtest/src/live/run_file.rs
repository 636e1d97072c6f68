//! A run as it is kept.

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Change, Level, Report, SelfReport};
use crate::broker::BrokerReport;
use crate::results::{Cell, LevelFigures, Results, Set, Source};

/// The form of the file. It grows by fields; a field that changes its meaning makes it `/2`.
pub const RUN_SCHEMA: &str = "kvlane-load.run/1";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Written {
    pub schema: String,
    pub version: String,
    /// Everything it takes to do it again.
    pub conditions: Value,
    /// What was asked for at first; none of a schedule or a ramp, and see what was changed.
    pub level: Option<Level>,
    pub changes: Vec<Change>,
    /// Ended before its time: the report is of what there was.
    pub interrupted: bool,
    /// Why the figures are worth nothing.
    pub invalid: Option<String>,
    pub generator: SelfReport,
    pub broker: Option<BrokerReport>,
    pub report: Report,
    /// Figures of equal parts of the measured time, by which two runs can be compared.
    pub parts: Vec<LevelFigures>,
}

impl Written {
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let written: Self = serde_json::from_str(text)?;
        ensure!(written.schema == RUN_SCHEMA, "schema is {}, expected {RUN_SCHEMA}", written.schema);
        Ok(written)
    }

    /// Its parts as repeats of one cell.
    pub fn as_results(&self) -> Results {
        let level = match self.level {
            Some(Level::Concurrency(count)) => count,
            Some(Level::Rate(rate)) => (rate * 60.0).round() as usize,
            None => 0,
        };
        let levels_are = match self.level {
            Some(Level::Concurrency(_)) => "conversations at a time",
            Some(Level::Rate(_)) => "conversations a minute",
            None => "a schedule",
        };
        let cell = |(repeat, figures): (usize, &LevelFigures)| Cell {
            mode: "run".to_owned(),
            level,
            repeat: repeat as u64,
            figures: Some(*figures),
            by_turn: Vec::new(),
            invalid: self.invalid.clone(),
            saturated: None,
            details: Value::Null,
        };
        let set = Set {
            name: "run".to_owned(),
            about: "a run in parts".to_owned(),
            levels_are: levels_are.to_owned(),
            conditions: self.conditions.clone(),
            cells: self.parts.iter().enumerate().map(cell).collect(),
        };
        Results::new(Source::Measured, self.report.objective, vec![set])
    }
}
