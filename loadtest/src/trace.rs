//! Recorded requests in Mooncake's form, one JSON object a line: when, how many tokens in and out, and a name for each
//! stretch of the prompt (512 tokens, unless it says otherwise): equal names at equal places are equal tokens.

mod make;
mod stats;

use std::path::Path;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

pub use self::make::{Recipe, make};
pub use self::stats::{Stats, stats};

/// Tokens a name stands for.
pub const HASH_TOKENS: usize = 512;
/// No trace is longer than thirty years, no prompt longer than this.
const MOST_MS: f64 = 1e12;
const MOST_TOKENS: usize = 100_000_000;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    /// Milliseconds from the trace's beginning.
    pub timestamp: f64,
    pub input_length: usize,
    pub output_length: usize,
    pub hash_ids: Vec<u64>,
}

/// In the order of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    pub requests: Vec<Recorded>,
}

impl Trace {
    /// Errors name the line.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let name = format!("trace {}", path.display());
        Self::parse(&std::fs::read_to_string(path).with_context(|| name.clone())?, &name)
    }

    pub fn parse(text: &str, name: &str) -> anyhow::Result<Self> {
        let mut requests = Vec::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let at = || format!("{name}, line {}", number + 1);
            let recorded: Recorded = serde_json::from_str(line).with_context(at)?;
            ensure!(
                (0.0..=MOST_MS).contains(&recorded.timestamp),
                "{}: `timestamp` is {}, expected 0 to {MOST_MS} milliseconds",
                at(),
                recorded.timestamp
            );
            let most = recorded.input_length.max(recorded.output_length).max(recorded.hash_ids.len());
            ensure!(most <= MOST_TOKENS, "{}: {most} tokens or hashes, expected at most {MOST_TOKENS}", at());
            requests.push(recorded);
        }
        ensure!(!requests.is_empty(), "{name}: no requests");
        requests.sort_by(|one, other| one.timestamp.total_cmp(&other.timestamp));
        let trace = Self { requests };
        ensure!(trace.seconds() > 0.0, "{name}: all of it is at one moment, expected some time");
        Ok(trace)
    }

    /// From the first request to the last.
    pub fn seconds(&self) -> f64 {
        match (self.requests.first(), self.requests.last()) {
            (Some(first), Some(last)) => (last.timestamp - first.timestamp) / 1e3,
            _ => 0.0,
        }
    }

    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let lines: Vec<String> = self.requests.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        crate::results::write_whole(path, (lines.join("\n") + "\n").as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_read_in_the_order_of_time_and_refused_by_line() {
        let lines = [
            r#"{"timestamp": 500, "input_length": 1030, "output_length": 3, "hash_ids": [7, 8, 11]}"#,
            r#"{"timestamp": 0, "input_length": 1100, "output_length": 40, "hash_ids": [7, 8, 9]}"#,
        ];
        let trace = Trace::parse(&lines.join("\n"), "t").unwrap();
        assert_eq!((trace.requests[0].timestamp, trace.seconds()), (0.0, 0.5));
        let refused = |text: &str| format!("{:#}", Trace::parse(text, "t").unwrap_err());
        assert!(refused(lines[0]).contains("at one moment"));
        assert!(refused("\n{\"timestamp\": 1}").contains("t, line 2: missing field `input_length`"));
        let early = lines[0].replace("500", "-1");
        assert!(refused(&early).contains("`timestamp` is -1, expected 0 to"));
        assert!(refused("").contains("no requests"));
    }
}
