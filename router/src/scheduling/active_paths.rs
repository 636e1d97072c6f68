//! Prompts in use at one worker, counted by the distinct blocks they have together.
//!
//! They are kept as runs: stretches that whoever uses their first block uses to their end. A block's hash stands for all
//! before it too, so two prompts part at one place only, which halving finds. A prompt that comes or goes costs as many
//! steps as it has partings, however many blocks it has.

use std::sync::Arc;

use hashbrown::HashMap;
use kvlane_indexer::SequenceHash;

#[derive(Clone, Debug, Default)]
pub(super) struct ActivePaths {
    /// By their first block. No more than there are blocks in use, and about two for each prompt.
    runs: HashMap<SequenceHash, Run>,
    blocks: usize,
}

/// A stretch of a prompt that was in use when it was last extended or cut.
#[derive(Clone, Debug)]
struct Run {
    path: Arc<[SequenceHash]>,
    from: usize,
    to: usize,
    users: usize,
}

impl Run {
    fn hashes(&self) -> &[SequenceHash] {
        &self.path[self.from..self.to]
    }

    /// Blocks it has in common with a prompt's rest, both beginning with the same.
    fn shared(&self, rest: &[SequenceHash]) -> usize {
        let hashes = self.hashes();
        let most = hashes.len().min(rest.len());
        if hashes[most - 1] == rest[most - 1] {
            return most;
        }
        // The first is the same, the last of these is not.
        let (mut same, mut other) = (0, most - 1);
        while other - same > 1 {
            let middle = usize::midpoint(same, other);
            *(if hashes[middle] == rest[middle] { &mut same } else { &mut other }) = middle;
        }
        other
    }
}

impl ActivePaths {
    /// Distinct blocks in use.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// How many of a prompt's blocks are in use already, from its beginning on.
    pub(super) fn used(&self, prompt: &[SequenceHash]) -> usize {
        let mut at = 0;
        while let Some(run) = prompt.get(at).and_then(|hash| self.runs.get(hash)) {
            let same = run.shared(&prompt[at..]);
            at += same;
            if same < run.hashes().len() {
                break;
            }
        }
        at
    }

    pub(super) fn add(&mut self, prompt: &Arc<[SequenceHash]>) {
        let mut at = 0;
        while at < prompt.len() {
            let Some(run) = self.runs.get_mut(&prompt[at]) else {
                let run = Run { path: prompt.clone(), from: at, to: prompt.len(), users: 1 };
                self.runs.insert(prompt[at], run);
                self.blocks += prompt.len() - at;
                return;
            };
            let same = run.shared(&prompt[at..]);
            at += same;
            let cut = run.from + same;
            let rest = (cut < run.to).then(|| Run { from: cut, ..run.clone() });
            run.to = cut;
            run.users += 1;
            if let Some(rest) = rest {
                self.runs.insert(rest.path[cut], rest);
            }
        }
    }

    /// Nobody is there: whatever two hashes that met by chance left behind is over too.
    pub(super) fn clear(&mut self) {
        self.runs.clear();
        self.blocks = 0;
    }

    /// One that was added is over.
    pub(super) fn remove(&mut self, prompt: &[SequenceHash]) {
        let mut at = 0;
        while let Some(run) = prompt.get(at).and_then(|hash| self.runs.get_mut(hash)) {
            let (first, blocks) = (prompt[at], run.to - run.from);
            at += blocks;
            run.users = run.users.saturating_sub(1);
            if run.users == 0 {
                self.runs.remove(&first);
                self.blocks = self.blocks.saturating_sub(blocks);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    /// A path's hashes, each standing for all turns taken so far.
    fn path(turns: &[u8]) -> Arc<[SequenceHash]> {
        let mut hash = 1_u64;
        let mut step = |turn: &u8| {
            hash = hash.wrapping_mul(31).wrapping_add(u64::from(*turn) + 1);
            SequenceHash(hash)
        };
        turns.iter().map(&mut step).collect()
    }

    #[test]
    fn prompts_part_where_they_differ() {
        let mut paths = ActivePaths::default();
        let (long, other) = (path(&[1, 1, 1, 1, 1]), path(&[1, 1, 1, 2, 2, 2]));
        paths.add(&long);
        assert_eq!((paths.blocks(), paths.used(&other), paths.used(&long[..2])), (5, 3, 2));
        paths.add(&other);
        assert_eq!((paths.blocks(), paths.runs.len()), (8, 3));
        paths.remove(&long);
        assert_eq!((paths.blocks(), paths.used(&long)), (6, 3));
        paths.remove(&other);
        assert_eq!((paths.blocks(), paths.runs.len()), (0, 0));
    }

    #[test]
    fn a_prompt_that_repeats_a_hash_does_no_harm() {
        let odd: Arc<[SequenceHash]> = [1, 2, 1].map(SequenceHash).into();
        let mut paths = ActivePaths::default();
        paths.add(&odd);
        paths.add(&[1, 2, 3].map(SequenceHash).into());
        paths.used(&odd);
        paths.remove(&odd);
        paths.remove(&odd);
    }

    proptest! {
        /// Whatever comes and goes: as a set of blocks counted one by one.
        #[test]
        fn blocks_are_those_of_a_plain_set(
            steps in prop::collection::vec((prop::collection::vec(0_u8..2, 0..10), any::<prop::sample::Index>(), any::<bool>()), 1..60),
        ) {
            let (mut paths, mut live) = (ActivePaths::default(), Vec::new());
            for (turns, index, ends) in steps {
                let prompt = path(&turns);
                if ends && !live.is_empty() {
                    let over: Arc<[SequenceHash]> = live.swap_remove(index.index(live.len()));
                    paths.remove(&over);
                } else {
                    paths.add(&prompt);
                    live.push(prompt.clone());
                }
                let plain: HashSet<SequenceHash> = live.iter().flat_map(|path| path.iter().copied()).collect();
                prop_assert_eq!(paths.blocks(), plain.len());
                let used = prompt.iter().take_while(|hash| plain.contains(*hash)).count();
                prop_assert_eq!(paths.used(&prompt), used);
            }
            live.iter().for_each(|path| paths.remove(path));
            prop_assert_eq!((paths.blocks(), paths.runs.len()), (0, 0));
        }
    }
}
