//! The lookup: one walk from the root along a prompt, and how far each worker comes along.
//!
//! A walk takes one shard's read lock per node and lets go before the next. Each node is seen whole, but two
//! nodes may be seen at different moments, and a worker that lost the first and gained the second in between
//! would be credited with both, though it never held both. So the walk remembers each shard's version and
//! checks them all at the end: unchanged versions mean that everything seen stood together when the last node
//! was read. Otherwise it starts again, and after many tries shuts writers out for one last walk.

use super::RadixTree;
use super::holders::Holders;
use super::node::Node;
use crate::Tick;
use crate::block::{SequenceHash, Tier};
use crate::sync::Ordering;
use crate::worker::Slot;

/// Walks before writers are asked to wait. A walk takes well under a microsecond and a clash needs a write to
/// one of the few shards on the path in that time, so this many in a row happen to nobody; the last resort is
/// there so that no lookup can go on for ever.
const OPTIMISTIC_TRIES: usize = 64;

/// A walk's result and its scratch space; meant to be used again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Depths {
    /// Leading blocks each slot holds on the device; as long as whole windows of 64 need.
    depths: Vec<u32>,
    /// How far each slot of interest comes when a lower tier may take over from a higher one.
    tiered: Vec<TieredDepth>,
    /// Slots that hold everything up to where the walk stands.
    active: Vec<u64>,
    visited: Vec<(u32, u64)>,
}

/// How far one worker reaches using the device only, then also its host memory, then also its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TieredDepth {
    pub(crate) slot: Slot,
    pub(crate) reach: [u32; 3],
    /// The tier that continues the run; none when the run has ended.
    tier: Option<Tier>,
}

impl Depths {
    pub(crate) fn get(&self, slot: usize) -> u32 {
        self.depths.get(slot).copied().unwrap_or(0)
    }

    pub(crate) fn as_slice(&self) -> &[u32] {
        &self.depths
    }

    pub(crate) fn tiered(&self) -> &[TieredDepth] {
        &self.tiered
    }

    pub(crate) fn reset(&mut self, slots: usize, tiered: &[Slot]) {
        let windows = slots.div_ceil(64);
        self.depths.clear();
        self.depths.resize(windows * 64, 0);
        self.active.resize(windows, 0);
        self.tiered.clear();
        let start = |slot: &Slot| TieredDepth { slot: *slot, tier: Some(Tier::Device), ..Default::default() };
        self.tiered.extend(tiered.iter().map(start));
        self.visited.clear();
    }

    /// Sees one node that covers depths from `start` on, of which the prompt has the first `matched` blocks.
    /// False when nobody comes further.
    #[inline]
    fn step(&mut self, node: &Node, start: u32, matched: u32) -> bool {
        let holders = node.device();
        let mut any = 0;
        if start == 0 {
            for (window, active) in self.active.iter_mut().enumerate() {
                *active = holders.full.word(window);
                any |= *active;
            }
        } else {
            for (window, active) in self.active.iter_mut().enumerate() {
                let stays = *active & holders.full.word(window);
                let drops = *active & !stays;
                if drops != 0 {
                    scatter(&mut self.depths[window * 64..][..64], drops, start);
                }
                *active = stays;
                any |= stays;
            }
        }
        self.step_partial(holders, start, matched);
        if self.tiered.is_empty() {
            return any != 0;
        }
        let mut going = any != 0;
        for depth in &mut self.tiered {
            going |= depth.step(node, start, matched);
        }
        going
    }

    #[inline]
    fn step_partial(&mut self, holders: &Holders, start: u32, matched: u32) {
        for partial in holders.partial() {
            let Some(depth) = self.depths.get_mut(partial.slot as usize) else {
                continue;
            };
            // Dropped a moment ago by `step`, so its depth is this node's start; others dropped earlier.
            if start == 0 || *depth == start {
                *depth = start + partial.extent.min(matched);
            }
        }
    }

    fn finish(&mut self, end: u32) {
        for (window, active) in self.active.iter_mut().enumerate() {
            if *active != 0 {
                scatter(&mut self.depths[window * 64..][..64], *active, end);
            }
            *active = 0;
        }
    }
}

impl TieredDepth {
    fn step(&mut self, node: &Node, start: u32, matched: u32) -> bool {
        let mut at = 0;
        while let Some(tier) = self.tier {
            at = node.extent(tier, self.slot).min(matched).max(at);
            self.reach[tier.index()..].fill(start + at);
            if at == matched && matched == node.len() {
                return true;
            }
            self.tier = Tier::ALL.get(tier.index() + 1).copied();
        }
        false
    }
}

/// Writes `depth` where `word` has a bit. The places are still zero, so that whole runs can be or-ed in.
#[inline]
fn scatter(depths: &mut [u32], mut word: u64, depth: u32) {
    /// For each of the sixteen patterns of four bits, the four masks they stand for.
    const MASKS: [[u32; 4]; 16] = {
        let mut masks = [[0; 4]; 16];
        let mut pattern = 0;
        while pattern < 16 {
            let mut bit = 0;
            while bit < 4 {
                masks[pattern][bit] = if pattern >> bit & 1 == 1 { u32::MAX } else { 0 };
                bit += 1;
            }
            pattern += 1;
        }
        masks
    };
    if word.count_ones() <= 6 {
        while word != 0 {
            depths[word.trailing_zeros() as usize] = depth;
            word &= word - 1;
        }
        return;
    }
    for (four, places) in depths.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let mask = MASKS[(word >> (four * 4)) as usize & 15];
        for (place, mask) in places.iter_mut().zip(mask) {
            *place |= mask & depth;
        }
    }
}

impl RadixTree {
    /// How many leading blocks of `prompt` each slot holds.
    pub(crate) fn overlap(
        &self,
        prompt: &[SequenceHash],
        tick: Tick,
        slots: usize,
        tiered: &[Slot],
        depths: &mut Depths,
    ) {
        for _ in 0..OPTIMISTIC_TRIES {
            depths.reset(slots, tiered);
            self.walk(prompt, tick, depths);
            if self.stood_together(&depths.visited) {
                return;
            }
        }
        let _no_writers = self.topology.lock();
        depths.reset(slots, tiered);
        self.walk(prompt, tick, depths);
    }

    fn walk(&self, prompt: &[SequenceHash], tick: Tick, depths: &mut Depths) {
        let mut at = 0;
        while at < prompt.len() {
            let key = prompt[at];
            let spread = key.spread();
            let index = self.shard_index(spread);
            let shard = &self.shards[index];
            let nodes = shard.nodes.read();
            depths.visited.push((index as u32, shard.version.load(Ordering::Acquire)));
            let Some(node) = nodes.find(spread, |node| node.is(key, at as u32)) else {
                break;
            };
            let matched = node.matched(0, &prompt[at..]);
            node.touch(tick);
            let going = depths.step(node, at as u32, matched);
            at += matched as usize;
            if !going || matched < node.len() || !node.fertile {
                break;
            }
        }
        depths.finish(at as u32);
    }

    /// Whether no shard changed since it was visited.
    fn stood_together(&self, visited: &[(u32, u64)]) -> bool {
        visited.len() == 1
            || visited
                .iter()
                .all(|(shard, seen)| self.shards[*shard as usize].version.load(Ordering::Acquire) == *seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scatter_writes_exactly_the_bits() {
        for word in [0, 1, 1 << 63, 0b1011, u64::MAX, 0xAAAA_5555_0F0F_F00F, !1] {
            let mut depths = [0_u32; 64];
            scatter(&mut depths, word, 7);
            for (bit, depth) in depths.iter().enumerate() {
                assert_eq!(*depth, if word >> bit & 1 == 1 { 7 } else { 0 });
            }
        }
    }
}
