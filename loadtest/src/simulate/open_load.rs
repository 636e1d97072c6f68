//! Requests that come when they come, whether the last ones are answered or not.

use kvlane_indexer::BlockHash;
use rand::RngExt;
use rand::rngs::StdRng;
use rand_distr::{Distribution, Exp1, Normal};

use super::settings::WorkloadSettings;
use super::workload::{Turn, block};
use crate::trace::{Recorded, Trace};

/// What of a trace comes when.
#[derive(Debug)]
pub(super) struct Replay<'a> {
    trace: &'a [Recorded],
    next: usize,
    /// How often it started over: what comes again is another text, or the second lap would be cached whole.
    lap: u64,
    /// Tokens of a hash and of a block.
    hash_tokens: usize,
    block_tokens: usize,
    most_tokens: usize,
}

impl<'a> Replay<'a> {
    pub(super) fn new(
        trace: &'a Trace,
        settings: &WorkloadSettings,
        block_tokens: usize,
        kv_blocks: usize,
    ) -> Self {
        let hash_tokens = settings.trace_block_tokens;
        Self {
            trace: &trace.requests,
            next: 0,
            lap: 0,
            hash_tokens,
            block_tokens,
            most_tokens: (kv_blocks - 1) * block_tokens,
        }
    }

    /// The next request, and milliseconds of the trace's own time until the one after it. It starts over at its end.
    pub(super) fn next(&mut self) -> (Turn, f64) {
        let recorded = &self.trace[self.next];
        let at = recorded.timestamp;
        let lap = self.lap;
        self.next = (self.next + 1) % self.trace.len();
        self.lap += u64::from(self.next == 0);
        // From the last to the first again it takes as long as between two on average.
        let mean = (at - self.trace[0].timestamp) / self.trace.len() as f64;
        let until = if self.next == 0 { mean } else { (self.trace[self.next].timestamp - at).max(0.0) };
        let answer_tokens = recorded.output_length.clamp(1, self.most_tokens / 2);
        // What no engine here could hold is cut.
        let prompt_tokens = recorded.input_length.clamp(1, self.most_tokens - answer_tokens);
        let per_hash = (self.hash_tokens / self.block_tokens).max(1);
        let own = 1 << 38 | lap << 24 | self.next as u64;
        let blocks = (0..(prompt_tokens + answer_tokens) / self.block_tokens).map(|n| {
            let in_prompt = (n + 1) * self.block_tokens <= prompt_tokens;
            match recorded.hash_ids.get(n / per_hash).filter(|_| in_prompt) {
                Some(hash) => block(1 << 39 | lap << 32 ^ hash, n),
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
        let lines = [
            r#"{"timestamp": 0, "input_length": 1100, "output_length": 40, "hash_ids": [7, 8, 9]}"#,
            r#"{"timestamp": 500, "input_length": 1030, "output_length": 3, "hash_ids": [7, 8, 11]}"#,
        ];
        let trace = Trace::parse(&lines.join("\n"), "trace").unwrap();
        let settings = Settings::reference().unwrap().workload;
        let mut replay = Replay::new(&trace, &settings, 32, 10_000);
        let ((first, gap), (second, _)) = (replay.next(), replay.next());
        assert_eq!(
            (gap, first.prompt_tokens, first.blocks.len(), second.blocks.len()),
            (500.0, 1100, 35, 32)
        );
        let common = first.blocks.iter().zip(&second.blocks).take_while(|(one, other)| one == other).count();
        assert_eq!(common, 32, "two hashes of 512 tokens");
        let (again, _) = replay.next();
        assert_ne!(again.blocks[0], first.blocks[0], "another lap is another text");
    }
}
