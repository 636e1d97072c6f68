//! Taking names out: from the end of a run as engines evict, from its start, or from the middle.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::{NameRange, Names, Run, Spot};
use crate::block::{EngineBlockId, Tier};
use crate::radix::AnchorId;

/// A range of blocks whose names are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) anchor: AnchorId,
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// How the number of runs that refer to the anchor has changed: by none, or by one either way.
    pub(crate) refs: i8,
}

impl Names {
    /// Takes out names that go together, as many from the front of `ids` as are neighbours in one run. Says
    /// how many that were; none when the first one is not known on this tier.
    pub(crate) fn remove(&mut self, ids: &[EngineBlockId], tier: Tier) -> Option<(usize, Gone)> {
        let id = *ids.first()?;
        let spot = match self.at_recent_end(id, tier) {
            Some(spot) => spot,
            None => self.find(id, Some(tier))?,
        };
        self.recent = spot.run;
        let run = self.run(spot.run);
        let same = |(asked, known): &(&EngineBlockId, &EngineBlockId)| asked == known;
        if spot.depth + 1 == run.end() {
            let count = ids.iter().zip(run.ids.iter().rev()).take_while(same).count();
            Some((count, self.cut_end(spot.run, count as u32)))
        } else if spot.depth == run.start {
            let count = ids.iter().zip(run.ids.iter()).take_while(same).count();
            Some((count, self.cut_start(spot.run, count as u32)))
        } else {
            Some((1, self.cut_out(spot)))
        }
    }

    fn at_recent_end(&self, id: EngineBlockId, tier: Tier) -> Option<Spot> {
        let run = self.runs.get(self.recent as usize)?.as_ref().filter(|run| run.tier == tier)?;
        if run.ids.back() == Some(&id) {
            return Some(Spot { run: self.recent, depth: run.end() - 1 });
        }
        (run.ids.front() == Some(&id)).then_some(Spot { run: self.recent, depth: run.start })
    }

    /// Takes the spots of the names at these depths out of the index, those that are in it.
    fn unput_range(&mut self, number: u32, from: u32, to: u32) {
        let run = self.run(number);
        if run.open_at.is_none() {
            (from..to).for_each(|depth| self.unput(Spot { run: number, depth }));
            return;
        }
        let last = run.end() - 1;
        if (from..to).contains(&last) && run.forks.last() != Some(&last) {
            self.unput(Spot { run: number, depth: last });
        }
        if self.run(number).forks.is_empty() {
            return;
        }
        let forks = self.change(number, |run| {
            let first = run.forks.partition_point(|fork| *fork < from);
            let after = run.forks.partition_point(|fork| *fork < to);
            run.forks.drain(first..after).collect::<SmallVec<[u32; 8]>>()
        });
        forks.into_iter().for_each(|depth| self.unput(Spot { run: number, depth }));
    }

    /// Sees to it that an open run's last name is hashed, once.
    fn hash_end(&mut self, number: u32) {
        let run = self.run(number);
        let last = run.end() - 1;
        if run.open_at.is_some() && run.forks.last() != Some(&last) {
            self.put(Spot { run: number, depth: last });
        }
    }

    fn forget_names(&mut self, number: u32, count: u32) {
        self.len -= count as usize;
        if self.run(number).open_at.is_some() {
            self.open_names -= count as usize;
        }
    }

    /// Ends the books on a range just taken out of a run.
    fn gone(&mut self, number: u32, from: u32, to: u32) -> Gone {
        let run = self.run(number);
        let (anchor, last) = (run.anchor, run.ids.is_empty());
        if last {
            self.drop_run(number);
        } else {
            self.fit(number);
            self.hash_end(number);
        }
        Gone { anchor, from, to, refs: -i8::from(last) }
    }

    /// Gives back what a run has far too much room for.
    fn fit(&mut self, number: u32) {
        self.change(number, |run| {
            if run.ids.capacity() > 2 * run.ids.len() + 16 {
                run.ids.shrink_to(run.ids.len() + run.ids.len() / 8);
            }
        });
    }

    fn cut_end(&mut self, number: u32, count: u32) -> Gone {
        let end = self.run(number).end();
        self.unput_range(number, end - count, end);
        self.forget_names(number, count);
        self.change(number, |run| run.ids.truncate(run.ids.len() - count as usize));
        self.gone(number, end - count, end)
    }

    fn cut_start(&mut self, number: u32, count: u32) -> Gone {
        let start = self.run(number).start;
        self.unput_range(number, start, start + count);
        self.forget_names(number, count);
        let keeps_end = self.run(number).ids.len() as u32 > count;
        self.change(number, |run| {
            run.ids.drain(..count as usize);
            run.start += count;
        });
        // The end is hashed already when there is one; `gone` would hash it again.
        if keeps_end {
            self.fit(number);
            return Gone { anchor: self.run(number).anchor, from: start, to: start + count, refs: 0 };
        }
        self.gone(number, start, start + count)
    }

    /// Takes one name out of the middle: the shorter side becomes a run of its own.
    fn cut_out(&mut self, spot: Spot) -> Gone {
        let Spot { run: number, depth } = spot;
        let run = self.run(number);
        let (start, end, anchor, tier) = (run.start, run.end(), run.anchor, run.tier);
        let was_open = run.open_at.is_some();
        let front_moves = depth - start < end - depth;
        let (from, to) = if front_moves { (start, depth) } else { (depth + 1, end) };
        let forks: SmallVec<[u32; 2]> =
            run.forks.iter().copied().filter(|fork| (from..to).contains(fork)).collect();
        self.unput_range(number, from.min(depth), to.max(depth + 1));
        self.forget_names(number, 1 + (to - from));
        let ids = self.change(number, |run| {
            let at = (depth - start) as usize;
            if front_moves {
                let mut front: VecDeque<_> = run.ids.drain(..=at).collect();
                front.pop_back();
                run.start = depth + 1;
                front
            } else {
                let back = run.ids.split_off(at + 1);
                run.ids.pop_back();
                back
            }
        });
        self.fit(number);
        self.len += ids.len();
        let moved =
            self.add_run(Run { ids, forks: SmallVec::new(), anchor, start: from, tier, open_at: None });
        let last = to - 1;
        self.put(Spot { run: moved, depth: last });
        if was_open {
            for fork in forks.into_iter().filter(|fork| *fork != last) {
                self.change(moved, |run| run.forks.push(fork));
                self.put(Spot { run: moved, depth: fork });
            }
        }
        if !front_moves {
            self.hash_end(number);
        }
        Gone { anchor, from: depth, to: depth + 1, refs: 1 }
    }

    /// Shortens every run to the depth that `keep` gives for it, and says what went.
    pub(crate) fn truncate_each(&mut self, mut keep: impl FnMut(&NameRange<'_>) -> u32) -> Vec<(Tier, Gone)> {
        let cuts: Vec<_> = (0_u32..)
            .zip(&self.runs)
            .filter_map(|(number, run)| {
                let run = run.as_ref()?;
                let to = keep(&NameRange { run }).max(run.start);
                (to < run.end()).then(|| (number, run.tier, run.end() - to))
            })
            .collect();
        cuts.into_iter().map(|(number, tier, count)| (tier, self.cut_end(number, count))).collect()
    }
}
