//! Requests that come when they come, whether the last ones are answered or not.

use std::path::Path;

use anyhow::{Context, ensure};
use kvlane_indexer::BlockHash;
use rand::RngExt;
use rand::rngs::StdRng;
use rand_distr::{Distribution, Exp1, Normal};
use serde::Deserialize;

use super::settings::WorkloadSettings;
use super::workload::{Turn, block};

/// A recorded request.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Recorded {
    /// Milliseconds from the trace's beginning.
    timestamp: f64,
    input_length: usize,
    output_length: usize,
    hash_ids: Vec<u64>,
}

/// Reads a trace; errors name the line.
pub(crate) fn read_trace(path: &Path) -> anyhow::Result<Vec<Recorded>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("trace {}", path.display()))?;
    let mut trace = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let at = || format!("trace {}, line {}", path.display(), number + 1);
        let recorded: Recorded = serde_json::from_str(line).with_context(at)?;
        ensure!(
            recorded.timestamp.is_finite() && recorded.timestamp >= 0.0,
            "{}: `timestamp` is {}, expected 0 or more",
            at(),
            recorded.timestamp
        );
        trace.push(recorded);
    }
    ensure!(!trace.is_empty(), "trace {}: no requests", path.display());
    trace.sort_by(|one, other| one.timestamp.total_cmp(&other.timestamp));
    let takes_time =
        |trace: &[Recorded]| trace.first().map(|one| one.timestamp) != trace.last().map(|one| one.timestamp);
    ensure!(takes_time(&trace), "trace {}: all of it is at one moment, expected some time", path.display());
    Ok(trace)
}

/// What of a trace comes when.
#[derive(Debug)]
pub(super) struct Replay<'a> {
    trace: &'a [Recorded],
    next: usize,
    /// Tokens of a hash and of a block.
    hash_tokens: usize,
    block_tokens: usize,
    most_tokens: usize,
}

impl<'a> Replay<'a> {
    pub(super) fn new(
        trace: &'a [Recorded],
        settings: &WorkloadSettings,
        block_tokens: usize,
        kv_blocks: usize,
    ) -> Self {
        let hash_tokens = settings.trace_block_tokens;
        Self { trace, next: 0, hash_tokens, block_tokens, most_tokens: (kv_blocks - 1) * block_tokens }
    }

    /// The next request, and milliseconds of the trace's own time until the one after it. It starts over at its end.
    pub(super) fn next(&mut self) -> (Turn, f64) {
        let recorded = &self.trace[self.next];
        let at = recorded.timestamp;
        self.next = (self.next + 1) % self.trace.len();
        let until = (self.trace[self.next].timestamp - at).max(0.0);
        let answer_tokens = recorded.output_length.clamp(1, self.most_tokens / 2);
        // What no engine here could hold is cut.
        let prompt_tokens = recorded.input_length.clamp(1, self.most_tokens - answer_tokens);
        let per_hash = (self.hash_tokens / self.block_tokens).max(1);
        let own = 1 << 40 | self.next as u64;
        let blocks = (0..(prompt_tokens + answer_tokens) / self.block_tokens).map(|n| {
            let in_prompt = (n + 1) * self.block_tokens <= prompt_tokens;
            match recorded.hash_ids.get(n / per_hash).filter(|_| in_prompt) {
                Some(hash) => block(1 << 39 | hash, n),
                None => block(own, n),
            }
        });
        (Turn { prompt_tokens, answer_tokens, blocks: blocks.collect() }, until)
    }
}

/// A burst: requests that share most of their prompt and come at once.
pub(super) fn burst(
    settings: &WorkloadSettings,
    number: u64,
    block_tokens: usize,
    random: &mut StdRng,
) -> Vec<Turn> {
    let (shared, own) = settings.burst_tokens;
    let (mean, deviation) = settings.answer_tokens;
    let (least, most) = settings.answer_bounds;
    let turn = |sibling: u64, random: &mut StdRng| {
        let drawn = Normal::new(mean, deviation).map_or(mean, |normal| normal.sample(random));
        let answer_tokens = (drawn.max(0.0) as usize).clamp(least, most);
        let prompt_tokens = shared + own;
        let all = 0..(prompt_tokens + answer_tokens) / block_tokens;
        let of = |n: usize| -> BlockHash {
            let common = (n + 1) * block_tokens <= shared;
            block(if common { 1 << 38 | number } else { 1 << 37 | number << 8 | sibling }, n)
        };
        Turn { prompt_tokens, answer_tokens, blocks: all.map(of).collect() }
    };
    (0..settings.burst as u64).map(|sibling| turn(sibling, random)).collect()
}

/// Milliseconds until the next burst, at so many a minute.
pub(super) fn burst_gap_ms(per_minute: usize, random: &mut StdRng) -> f64 {
    let drawn: f64 = Exp1.sample(random);
    // Hurried to the next one when there are none a minute.
    drawn * 60_000.0 / per_minute.max(1) as f64
}

/// Siblings do not come in the same instant.
pub(super) fn sibling_delay_ms(random: &mut StdRng) -> f64 {
    random.random_range(0.0..100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::Settings;

    #[test]
    fn a_trace_says_which_blocks_are_shared() {
        let dir = std::env::temp_dir().join(format!("kvlane-trace-{}", std::process::id()));
        let lines = [
            r#"{"timestamp": 0, "input_length": 1100, "output_length": 40, "hash_ids": [7, 8, 9]}"#,
            r#"{"timestamp": 500, "input_length": 1030, "output_length": 3, "hash_ids": [7, 8, 11]}"#,
        ];
        std::fs::write(&dir, lines.join("\n")).unwrap();
        let trace = read_trace(&dir).unwrap();
        let settings = Settings::reference().unwrap().workload;
        let mut replay = Replay::new(&trace, &settings, 32, 10_000);
        let ((first, gap), (second, _)) = (replay.next(), replay.next());
        assert_eq!(
            (gap, first.prompt_tokens, first.blocks.len(), second.blocks.len()),
            (500.0, 1100, 35, 32)
        );
        let common = first.blocks.iter().zip(&second.blocks).take_while(|(one, other)| one == other).count();
        assert_eq!(common, 32, "two hashes of 512 tokens");
        std::fs::write(&dir, lines[0]).unwrap();
        assert!(read_trace(&dir).unwrap_err().to_string().contains("at one moment"));
        std::fs::write(&dir, "{\"timestamp\": 1}").unwrap();
        let refused = format!("{:#}", read_trace(&dir).unwrap_err());
        assert!(refused.contains("line 1: missing field `input_length`"), "{refused}");
        std::fs::remove_file(dir).unwrap();
    }
}
