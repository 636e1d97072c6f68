//! One worker's names for the blocks it holds: which block does the engine mean by this id?
//!
//! There is one name per held block, so names are most of the index's memory, and an event brings a dozen
//! or a thousand of them. Hashing each would cost more than everything else together. But engines name
//! blocks in runs: a stored event is a piece of one path, the next event continues where one ended, and
//! blocks go in the order of the path, usually from its end. So names are kept as *runs*, in the order of
//! the path, 8 bytes each, and only few are hashed: the last name of each run, where the next event will
//! continue, and names somebody asked for. After a run's last name is removed, the next one asked for is
//! compared with its neighbour first.
//!
//! Any other name is searched for. Searching is cheap per name but not free: once names have been passed
//! over many times, all of them are hashed, so a feed that jumps around pays for hashing, and no more.

mod removal;
mod run;

use hashbrown::HashTable;
use smallvec::SmallVec;

pub(crate) use self::removal::Gone;
pub(crate) use self::run::NameRange;
use self::run::Run;

use crate::block::{EngineBlockId, Tier};
use crate::radix::{AnchorId, Topology};

/// Deepest block whose place can be written down.
pub(crate) const MAX_DEPTH: u32 = u32::MAX >> 1;

/// How often names are passed over, on average, before they are hashed: about what hashing costs, in units
/// of passing over.
const PATIENCE: usize = 24;

/// Where a name is: in which run, and the depth of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    run: u32,
    pub(crate) depth: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Names {
    runs: Vec<Option<Run>>,
    vacant: Vec<u32>,
    index: HashTable<Spot>,
    /// Runs of which not all names are hashed.
    open: Vec<u32>,
    /// How many names those have.
    open_names: usize,
    /// How many names have been passed over since all were last hashed.
    passed_over: usize,
    len: usize,
    /// Bytes behind the runs' own pointers.
    run_bytes: usize,
    /// The run that last lost a name; its end is likely to lose the next.
    recent: u32,
}

impl Names {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.run_bytes
            + self.runs.capacity() * size_of::<Option<Run>>()
            + (self.vacant.capacity() + self.open.capacity()) * size_of::<u32>()
            + self.index.allocation_size()
    }

    fn run(&self, run: u32) -> &Run {
        match &self.runs[run as usize] {
            Some(run) => run,
            None => unreachable!("run {run} is referred to but gone"),
        }
    }

    /// Changes one run and keeps the count of bytes.
    fn change<R>(&mut self, run: u32, change: impl FnOnce(&mut Run) -> R) -> R {
        let Some(run) = &mut self.runs[run as usize] else {
            unreachable!("run {run} is referred to but gone")
        };
        let before = run.heap_bytes();
        let result = change(run);
        self.run_bytes = self.run_bytes + run.heap_bytes() - before;
        result
    }

    /// The anchor at or above which the block at this spot lies.
    pub(crate) fn anchor(&self, spot: Spot) -> AnchorId {
        self.run(spot.run).anchor
    }

    /// Where a name is; on any tier when none is given.
    pub(crate) fn find(&mut self, id: EngineBlockId, tier: Option<Tier>) -> Option<Spot> {
        let fits = |run: &Run| tier.is_none_or(|tier| tier == run.tier);
        self.find_hashed(id, fits).or_else(|| self.search(id, fits))
    }

    /// Where the name is that a stored event calls its parent: on the event's own tier, or else on any.
    pub(crate) fn find_parent(&mut self, id: EngineBlockId, tier: Tier) -> Option<Spot> {
        self.find_hashed(id, |run| run.tier == tier).or_else(|| self.find(id, None))
    }

    fn find_hashed(&self, id: EngineBlockId, fits: impl Fn(&Run) -> bool) -> Option<Spot> {
        let is = |spot: &Spot| {
            let run = self.run(spot.run);
            run.get(spot.depth) == Some(id) && fits(run)
        };
        self.index.find(id.spread(), is).copied()
    }

    #[cold]
    fn search(&mut self, id: EngineBlockId, fits: impl Fn(&Run) -> bool) -> Option<Spot> {
        let mut found = None;
        let mut passed_over = 0;
        // The youngest first: what is asked for is more often new than old.
        for number in self.open.iter().rev() {
            let run = self.run(*number);
            passed_over += run.ids.len();
            if fits(run)
                && let Some(depth) = run.position(id)
            {
                found = Some(Spot { run: *number, depth });
                break;
            }
        }
        self.passed_over += passed_over;
        if let Some(spot) = found {
            // Asked for once, likely asked for again: other paths branch off here.
            self.change(spot.run, |run| {
                let at = run.forks.partition_point(|fork| *fork < spot.depth);
                run.forks.insert(at, spot.depth);
            });
            self.put(spot);
        }
        if self.passed_over > PATIENCE * self.open_names + 64 {
            self.hash_all();
        }
        found
    }

    fn hash_all(&mut self) {
        self.passed_over = 0;
        self.open_names = 0;
        for number in std::mem::take(&mut self.open) {
            let hashed = self.change(number, |run| {
                run.open_at = None;
                std::mem::take(&mut run.forks)
            });
            let run = self.run(number);
            let last = run.end() - 1;
            for depth in run.start..last {
                if hashed.binary_search(&depth).is_err() {
                    self.put(Spot { run: number, depth });
                }
            }
        }
    }

    fn put(&mut self, spot: Spot) {
        let Self { runs, index, .. } = self;
        let name = |spot: &Spot| runs[spot.run as usize].as_ref().and_then(|run| run.get(spot.depth));
        // Names of spots in the index are known; a spot without one would be a contradiction.
        let hashed = |spot: &Spot| name(spot).map_or(0, EngineBlockId::spread);
        index.insert_unique(hashed(&spot), spot, hashed);
    }

    /// Takes a spot out of the index; its name must still be in its run.
    fn unput(&mut self, spot: Spot) {
        let Some(id) = self.run(spot.run).get(spot.depth) else { return };
        if let Ok(found) = self.index.find_entry(id.spread(), |known| *known == spot) {
            found.remove();
        }
    }

    /// Writes down names of blocks from depth `start` on, all in or above `anchor`'s node. `after` is where
    /// the name of the block before them is; when it ends a run, that run goes on.
    pub(crate) fn append(
        &mut self,
        topology: &mut Topology,
        after: Option<Spot>,
        (anchor, start, tier): (AnchorId, u32, Tier),
        ids: impl ExactSizeIterator<Item = EngineBlockId>,
    ) {
        topology.retain(anchor, 1);
        self.len += ids.len();
        let continues = after.filter(|after| {
            let run = self.run(after.run);
            after.depth + 1 == start && run.end() == start && run.tier == tier && run.open_at.is_some()
        });
        let number = match continues {
            Some(after) => {
                self.open_names += ids.len();
                // The old end is an ordinary name from now on, unless something branches off there.
                if self.run(after.run).forks.last() != Some(&after.depth) {
                    self.unput(after);
                }
                let old = self.change(after.run, |run| {
                    let needed = run.ids.len() + ids.len();
                    if needed > run.ids.capacity() {
                        run.ids.reserve_exact(ids.len() + 12 + needed / 8);
                    }
                    run.ids.extend(ids);
                    std::mem::replace(&mut run.anchor, anchor)
                });
                topology.release(old, 1);
                after.run
            }
            None => self.add_run(Run {
                ids: ids.collect(),
                forks: SmallVec::new(),
                anchor,
                start,
                tier,
                open_at: None,
            }),
        };
        let last = self.run(number).end() - 1;
        self.put(Spot { run: number, depth: last });
    }

    /// Adds a run whose names are not hashed yet; names already counted.
    fn add_run(&mut self, mut run: Run) -> u32 {
        self.run_bytes += run.heap_bytes();
        self.open_names += run.ids.len();
        run.open_at = Some(self.open.len() as u32);
        let number = match self.vacant.pop() {
            Some(number) => {
                self.runs[number as usize] = Some(run);
                number
            }
            None => {
                if self.runs.len() == self.runs.capacity() {
                    self.runs.reserve_exact(8 + self.runs.len() / 4);
                }
                self.runs.push(Some(run));
                self.runs.len() as u32 - 1
            }
        };
        self.open.push(number);
        number
    }

    /// Closes the books on a run without names: off the list of open ones, its number free.
    fn drop_run(&mut self, number: u32) {
        let Some(run) = self.runs[number as usize].take() else { return };
        self.run_bytes -= run.heap_bytes();
        if let Some(at) = run.open_at {
            self.open.swap_remove(at as usize);
            if let Some(moved) = self.open.get(at as usize).copied() {
                self.change(moved, |run| run.open_at = Some(at));
            }
        }
        self.vacant.push(number);
        if self.len == 0 {
            *self = Self { passed_over: self.passed_over, ..Self::default() };
        }
    }

    /// Every range of names there is.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = NameRange<'_>> {
        self.runs.iter().flatten().map(|run| NameRange { run })
    }

    /// Gives memory back when far less is held than there is room for.
    pub(crate) fn settle(&mut self) {
        if self.index.capacity() > 4 * self.index.len() + 16 {
            let runs = &self.runs;
            let name = |spot: &Spot| runs[spot.run as usize].as_ref().and_then(|run| run.get(spot.depth));
            self.index.shrink_to(self.index.len(), |spot| name(spot).map_or(0, EngineBlockId::spread));
        }
        if self.vacant.len() > self.runs.len() / 2 + 8 {
            self.renumber();
        }
    }

    /// Numbers the runs anew, without gaps.
    fn renumber(&mut self) {
        let mut numbers = vec![0; self.runs.len()];
        let old = std::mem::take(&mut self.runs);
        self.runs.reserve_exact(old.len() - self.vacant.len());
        for (number, run) in numbers.iter_mut().zip(old) {
            *number = self.runs.len() as u32;
            self.runs.extend(run.map(Some));
        }
        self.index.iter_mut().for_each(|spot| spot.run = numbers[spot.run as usize]);
        self.open.iter_mut().for_each(|run| *run = numbers[*run as usize]);
        self.open.shrink_to_fit();
        self.vacant = Vec::new();
        self.recent = 0;
    }
}

#[cfg(any(test, debug_assertions))]
impl Names {
    /// Panics when the books do not agree.
    pub(crate) fn check(&self) {
        let runs: Vec<_> =
            (0_u32..).zip(&self.runs).filter_map(|(n, run)| Some((n, run.as_ref()?))).collect();
        assert_eq!(self.len, runs.iter().map(|(_, run)| run.ids.len()).sum::<usize>());
        assert_eq!(self.run_bytes, runs.iter().map(|(_, run)| run.heap_bytes()).sum::<usize>());
        let open: Vec<_> = runs.iter().filter(|(_, run)| run.open_at.is_some()).collect();
        assert_eq!(self.open_names, open.iter().map(|(_, run)| run.ids.len()).sum::<usize>());
        assert_eq!(self.open.len(), open.len());
        let mut hashed = 0;
        for (number, run) in &runs {
            assert!(!run.ids.is_empty());
            let last = run.end() - 1;
            if let Some(at) = run.open_at {
                assert_eq!(self.open[at as usize], *number);
                assert!(run.forks.is_sorted() && run.forks.iter().all(|fork| run.get(*fork).is_some()));
                hashed += run.forks.len() + usize::from(!run.forks.contains(&last));
            } else {
                assert!(run.forks.is_empty());
                hashed += run.ids.len();
            }
            let depths = if run.open_at.is_some() { last..run.end() } else { run.start..run.end() };
            for depth in depths.chain(run.forks.iter().copied()) {
                let spot = Spot { run: *number, depth };
                let id = run.get(depth).expect("hashed names are in their run");
                assert!(self.index.find(id.spread(), |known| *known == spot).is_some(), "{spot:?} is hashed");
            }
        }
        assert_eq!(self.index.len(), hashed, "nothing else is hashed");
    }
}
