//! An engine's log of its steps: a JSON object a line.

use std::io::BufRead;

use anyhow::{Context, ensure};
use kvlane_engine_adapters::sim::{Calibration, Work};
use serde::Deserialize;

/// One step of an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    pub work: Work,
    pub ms: f64,
    /// Launched piece by piece rather than replayed.
    pub eager: bool,
}

impl Step {
    pub(super) fn modelled(&self, calibration: &Calibration) -> f64 {
        calibration.step_ms(&self.work)
    }

    /// Relative to the longer of what it took and what it should have taken, so that a step that was disturbed, either
    /// way, is off by one at most.
    pub(super) fn error(&self, calibration: &Calibration) -> f64 {
        let modelled = self.modelled(calibration);
        (self.ms - modelled) / self.ms.max(modelled)
    }
}

/// Other fields may stand beside them.
#[derive(Debug, Deserialize)]
struct Line {
    batch: usize,
    context_tokens: u64,
    prefill_tokens: usize,
    ms: f64,
    /// Half of its own square where the log does not say: a prompt from its beginning.
    prefill_pairs: Option<u64>,
    /// Steps that prefill are not replayed, and others are, where the log does not say.
    graph: Option<bool>,
}

/// No engine has more, and no step takes longer.
const MOST: u64 = 1 << 40;
const MOST_MS: f64 = 1e9;

/// Reads a log. `name` is for messages; lines that are empty are passed over.
pub fn read(name: &str, lines: impl BufRead) -> anyhow::Result<Vec<Step>> {
    let mut steps = Vec::new();
    for (number, line) in (1..).zip(lines.lines()) {
        let line = line.with_context(|| name.to_owned())?;
        if line.trim().is_empty() {
            continue;
        }
        let at = || format!("{name}, line {number}");
        let line: Line = serde_json::from_str(&line).with_context(at)?;
        let (batch, prefill) = (line.batch as u64, line.prefill_tokens as u64);
        let most = batch.max(prefill).max(line.context_tokens).max(line.prefill_pairs.unwrap_or(0));
        ensure!(most <= MOST, "{}: {most} is expected to be at most {MOST}", at());
        ensure!((0.0..=MOST_MS).contains(&line.ms), "{}: `ms` is {}, expected 0 to {MOST_MS}", at(), line.ms);
        // An empty step, or one that took no time, says nothing.
        if batch + prefill == 0 || line.ms == 0.0 {
            continue;
        }
        let pairs = line.prefill_pairs.unwrap_or(prefill.min(1 << 20).pow(2) / 2);
        let work =
            Work { batch: line.batch, context: line.context_tokens, prefill: line.prefill_tokens, pairs };
        steps.push(Step { work, ms: line.ms, eager: !line.graph.unwrap_or(line.prefill_tokens == 0) });
    }
    ensure!(
        !steps.is_empty(),
        "{name} has no steps, expected lines with batch, context_tokens, prefill_tokens and ms"
    );
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_read_as_far_as_they_say() {
        let log = r#"{"at":1.5,"batch":3,"context_tokens":900,"prefill_tokens":0,"prefill_pairs":0,"graph":true,"ms":7.25}

            {"batch":0,"context_tokens":0,"prefill_tokens":100,"ms":11}
            {"batch":0,"context_tokens":0,"prefill_tokens":0,"ms":1}
            {"batch":40,"context_tokens":900,"prefill_tokens":0,"graph":false,"ms":12}"#;
        let steps = read("steps.jsonl", log.as_bytes()).unwrap();
        assert_eq!(steps.len(), 3);
        assert_eq!(
            steps[0],
            Step { work: Work { batch: 3, context: 900, ..Work::default() }, ms: 7.25, eager: false }
        );
        assert_eq!((steps[1].work.pairs, steps[1].eager, steps[2].eager), (5000, true, true));
        let refused = |log: &str| format!("{:#}", read("steps.jsonl", log.as_bytes()).unwrap_err());
        assert!(refused("").contains("steps.jsonl has no steps, expected lines with batch"));
        assert!(refused("{\"batch\":1}").starts_with("steps.jsonl, line 1: missing field"));
        let long = r#"{"batch":1,"context_tokens":1,"prefill_tokens":0,"ms":-1}"#;
        assert!(refused(long).contains("`ms` is -1, expected 0 to"));
    }
}
