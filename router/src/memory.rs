//! Why requests went where they went: decisions as people read them, and those of late, for those who ask afterwards.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use kvlane_indexer::{Overlap, WorkerId};
use parking_lot::Mutex;
use serde_json::{Value, json};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::discovery::{Fleet, Served};
use crate::scheduling::{Decision, Demand, RANKED, Ranked};

/// Workers of a decision that are remembered, of those that could be chosen and of those that could not.
const REMEMBERED_WORKERS: usize = RANKED;

/// A decision, and what it was made from.
#[derive(Clone, Debug)]
pub struct Explained {
    pub model: String,
    pub mode: &'static str,
    pub prompt_tokens: usize,
    /// Whether they were counted with the model's own tokenizer.
    pub exact: bool,
    pub block_tokens: usize,
    pub blocks: usize,
    pub known_by: &'static str,
    ranked: Vec<Considered>,
    barred: Vec<Considered>,
    held_out: bool,
    /// The key it was asked with.
    key: Option<String>,
    /// Seconds since 1970.
    pub at: f64,
}

#[derive(Clone, Copy, Debug)]
struct Considered {
    ranked: Ranked,
    held_blocks: u32,
    expected_blocks: u32,
}

impl Explained {
    pub fn new(
        served: &Served,
        mode: &'static str,
        demand: &Demand,
        exact: bool,
        overlap: &Overlap,
        decision: &Decision,
        at: f64,
    ) -> Self {
        let considered = |ranked: &[Ranked]| {
            let one = |ranked: &Ranked| {
                let held = overlap.of(ranked.worker);
                Considered { ranked: *ranked, held_blocks: held.device, expected_blocks: held.predicted }
            };
            ranked.iter().take(REMEMBERED_WORKERS).map(one).collect()
        };
        Self {
            model: served.name.clone(),
            mode,
            prompt_tokens: demand.prompt_tokens,
            exact,
            block_tokens: demand.block_tokens,
            blocks: demand.blocks.len(),
            known_by: served.group.words.name(),
            ranked: considered(&decision.ranked),
            barred: considered(&decision.barred),
            held_out: decision.held_out,
            key: None,
            at,
        }
    }

    #[must_use]
    pub fn asked_by(self, key: Option<&str>) -> Self {
        Self { key: key.map(str::to_owned), ..self }
    }

    /// As JSON; workers by the names they have now.
    pub fn shown(&self, fleet: &Fleet) -> Value {
        let name = |id: WorkerId| {
            fleet.workers.iter().find(|worker| worker.instance == id.instance).map(|worker| &worker.name)
        };
        let one = |considered: &Considered| {
            let Considered { ranked, held_blocks, expected_blocks } = considered;
            json!({
                "worker": name(ranked.worker),
                "id": ranked.worker.instance,
                "rank": ranked.worker.dp_rank,
                "held_blocks": held_blocks,
                "expected_blocks": expected_blocks,
                "active_requests": ranked.active_requests,
                "prefill_cost": ranked.cost.prefill,
                "decode_cost": ranked.cost.decode,
                "requests_cost": ranked.cost.requests,
                "waiting_cost": ranked.cost.waiting,
                "home_credit": ranked.cost.home,
                "cost": ranked.cost.total(),
                "barred": ranked.barred,
            })
        };
        json!({
            "model": self.model,
            "mode": self.mode,
            "at": self.at,
            "key": self.key,
            "prompt_tokens": self.prompt_tokens,
            "prompt_tokens_exact": self.exact,
            "block_size": self.block_tokens,
            "blocks": self.blocks,
            "prompts_known_by": self.known_by,
            "held_out": self.held_out,
            "chosen": self.ranked.first().map(one),
            "candidates": self.ranked.iter().map(one).collect::<Vec<_>>(),
            "barred": self.barred.iter().map(one).collect::<Vec<_>>(),
        })
    }
}

/// Decisions by their requests' ids; the oldest are forgotten.
#[derive(Debug)]
pub struct Memory {
    most: usize,
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    by_id: HashMap<u64, Arc<Explained>>,
    order: VecDeque<u64>,
}

impl Memory {
    /// Of so many.
    pub fn new(decisions: usize) -> Self {
        Self { most: decisions, ring: Mutex::default() }
    }

    /// `explained` is made only when it is kept.
    pub fn keep(&self, key: Option<&str>, id: &[u8], explained: impl FnOnce() -> Explained) {
        if self.most == 0 {
            return;
        }
        let (id, explained) = (name_of(key, id), Arc::new(explained()));
        let mut ring = self.ring.lock();
        if ring.by_id.insert(id, explained).is_some() {
            // A client that uses one id twice asks about the last time.
            ring.order.retain(|other| *other != id);
        }
        ring.order.push_back(id);
        if ring.order.len() > self.most
            && let Some(oldest) = ring.order.pop_front()
        {
            ring.by_id.remove(&oldest);
        }
    }

    /// What was asked without a key, or with that one.
    pub fn of(&self, key: Option<&str>, id: &str) -> Option<Arc<Explained>> {
        self.ring.lock().by_id.get(&name_of(key, id.as_bytes())).cloned()
    }
}

/// One client's ids are not another's.
fn name_of(key: Option<&str>, id: &[u8]) -> u64 {
    key.map_or_else(|| xxh3_64(id), |key| xxh3_64_with_seed(id, xxh3_64(key.as_bytes())))
}
