//! Load one worker carries for requests placed there and not yet finished.
//!
//! Prefill load ends at the first token, block load with the request. Blocks are counted twice over: distinct ones, a
//! prompt that several requests share once, as the reference's cost has it; and all of them, every request's own prompt
//! and what it has been answered so far.

use hashbrown::HashMap;
use kvlane_indexer::SequenceHash;

#[derive(Clone, Debug, Default)]
pub struct ActiveLoad {
    requests: usize,
    prefill_tokens: usize,
    blocks: HashMap<SequenceHash, u32>,
    total_blocks: usize,
}

impl ActiveLoad {
    pub fn requests(&self) -> usize {
        self.requests
    }

    /// Prompt tokens placed here whose first answer token has not come yet, cached ones not counted.
    pub fn prefill_tokens(&self) -> usize {
        self.prefill_tokens
    }

    /// Distinct prompt blocks in use.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Every request's own blocks, shared or not, answers included.
    pub fn total_blocks(&self) -> usize {
        self.total_blocks
    }

    /// Distinct prompt blocks in use if a request with this prompt came too.
    pub fn blocks_with(&self, prompt: &[SequenceHash]) -> usize {
        // Whoever uses a block uses all before it, so what is in use of a path is its beginning.
        let used = prompt.partition_point(|hash| self.blocks.contains_key(hash));
        self.blocks.len() + prompt.len() - used
    }

    /// A request was placed here.
    pub fn add(&mut self, prompt: &[SequenceHash], prefill_tokens: usize) {
        self.requests += 1;
        self.prefill_tokens += prefill_tokens;
        self.total_blocks += prompt.len();
        prompt.iter().for_each(|hash| *self.blocks.entry(*hash).or_default() += 1);
    }

    /// Its first token came: what it had to compute is computed.
    pub fn prefilled(&mut self, prefill_tokens: usize) {
        self.prefill_tokens = self.prefill_tokens.saturating_sub(prefill_tokens);
    }

    /// Its answer filled more blocks.
    pub fn grew(&mut self, blocks: usize) {
        self.total_blocks += blocks;
    }

    /// It is over, its answer having filled `answer_blocks`.
    pub fn remove(&mut self, prompt: &[SequenceHash], answer_blocks: usize) {
        self.requests = self.requests.saturating_sub(1);
        self.total_blocks = self.total_blocks.saturating_sub(prompt.len() + answer_blocks);
        for hash in prompt {
            if let Some(count) = self.blocks.get_mut(hash) {
                *count -= 1;
                if *count == 0 {
                    self.blocks.remove(hash);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_blocks_count_once_until_the_last_request_is_over() {
        let path = |own: u64| vec![SequenceHash(1), SequenceHash(2), SequenceHash(own)];
        let mut load = ActiveLoad::default();
        load.add(&path(10), 96);
        load.add(&path(20), 32);
        assert_eq!((load.requests(), load.prefill_tokens(), load.blocks_with(&path(30))), (2, 128, 5));
        load.grew(2);
        assert_eq!((load.blocks(), load.total_blocks()), (4, 8));
        load.prefilled(96);
        load.remove(&path(10), 2);
        assert_eq!((load.requests(), load.prefill_tokens(), load.blocks_with(&[])), (1, 32, 3));
        load.remove(&path(20), 0);
        assert_eq!((load.blocks_with(&[]), load.total_blocks()), (0, 0));
    }
}
