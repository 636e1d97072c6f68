//! One worker's cache with a bound: what it would announce while serving prompts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use kvlane_indexer::{EngineBlockId, KvEvent, Tier};

use crate::Prompt;

/// Evicts the least recently used block, of equals the deepest: paths go from their ends.
pub(crate) struct Cache {
    capacity: usize,
    used: HashMap<EngineBlockId, (u64, Reverse<usize>)>,
    order: BTreeMap<(u64, Reverse<usize>, EngineBlockId), ()>,
}

impl Cache {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, used: HashMap::new(), order: BTreeMap::new() }
    }

    /// Serves one prompt: says what is evicted to make room, then what is stored.
    pub(crate) fn serve(&mut self, time: u64, prompt: &Prompt, mut say: impl FnMut(KvEvent)) {
        let len = prompt.blocks.len().min(self.capacity);
        let held = (0..len).take_while(|at| self.used.contains_key(&prompt.id(*at))).count();
        (0..held).for_each(|at| self.touch(time, prompt.id(at), at));
        let mut evicted = Vec::new();
        while self.used.len() + (len - held) > self.capacity {
            let Some(((last, _, id), ())) = self.order.pop_first() else { break };
            debug_assert!(last < time, "a prompt does not evict itself");
            self.used.remove(&id);
            evicted.push(id);
        }
        if !evicted.is_empty() {
            say(KvEvent::Removed { tier: Tier::Device, ids: evicted });
        }
        // What was cut off from its beginning by eviction is still there, and announced again with the rest.
        if held < len {
            (held..len).for_each(|at| self.touch(time, prompt.id(at), at));
            say(prompt.stored(held, len));
        }
    }

    fn touch(&mut self, time: u64, id: EngineBlockId, depth: usize) {
        let now = (time, Reverse(depth));
        if let Some((last, depth)) = self.used.insert(id, now) {
            self.order.remove(&(last, depth, id));
        }
        self.order.insert((now.0, now.1, id), ());
    }

    /// Evicts everything, in events as large as an engine's batch.
    pub(crate) fn drain(self) -> Vec<KvEvent> {
        let ids: Vec<_> = self.order.into_keys().map(|(_, _, id)| id).collect();
        let event = |ids: &[EngineBlockId]| KvEvent::Removed { tier: Tier::Device, ids: ids.to_vec() };
        ids.chunks(128).map(event).collect()
    }
}
