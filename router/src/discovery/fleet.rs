//! Workers by what they serve, as one request sees them from its beginning to its end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvlane_indexer::{BlockSize, Index, WorkerId};

use super::worker::{Sight, Worker, WorkerState};
use crate::metrics::ModelMetrics;
use crate::preprocess::Words;
use crate::scheduling::{Barred, Policy, Standing, WaitingRoom, WaitingRules};

/// A base model: what all who serve it have in common.
#[derive(Debug)]
pub struct Group {
    pub name: String,
    pub words: Words,
    /// Tokens in a block; the first worker's word, or the operator's.
    pub block_size: BlockSize,
    /// Where requests wait when nobody may take another.
    pub room: Arc<WaitingRoom>,
    /// Counts up with every request.
    turns: AtomicU64,
}

impl Group {
    pub fn new(name: String, words: Words, block_size: BlockSize, waiting: WaitingRules) -> Self {
        Self { name, words, block_size, room: WaitingRoom::new(waiting), turns: AtomicU64::new(0) }
    }

    /// Whose turn it is.
    pub fn turn(&self) -> u64 {
        self.turns.fetch_add(1, Ordering::Relaxed)
    }
}

/// A name requests may use.
#[derive(Clone, Debug)]
pub struct Served {
    pub name: String,
    pub group: Arc<Group>,
    /// Set when the name is an adapter's.
    pub lora_name: Option<String>,
    pub root: Option<String>,
    /// The longest any of the workers takes.
    pub max_len: Option<usize>,
    pub workers: Vec<Arc<Worker>>,
    pub metrics: Arc<ModelMetrics>,
}

impl Served {
    /// Everyone who serves it, and why some may not be chosen. When breakers have taken out half of those that are there
    /// or more, the fault is hardly theirs: then nobody is barred by one.
    pub fn standings(&self, sight: &Sight, policy: &Policy, index: &Index) -> Vec<Standing> {
        let mut standings: Vec<Standing> =
            self.workers.iter().flat_map(|worker| worker.standings(sight)).collect();
        let by_breaker = |standing: &Standing| standing.barred == Some(Barred::Breaker);
        let free = standings.iter().filter(|standing| standing.barred.is_none()).count();
        if free < standings.iter().filter(|standing| by_breaker(standing)).count() {
            for standing in standings.iter_mut().filter(|standing| by_breaker(standing)) {
                standing.barred = None;
            }
        }
        if policy.compares_trees() {
            for standing in &mut standings {
                standing.held_blocks = index.held_blocks(standing.worker);
            }
        }
        standings
    }

    pub fn worker(&self, id: WorkerId) -> Option<&Arc<Worker>> {
        self.workers.iter().find(|worker| worker.instance == id.instance)
    }

    pub fn ready(&self) -> impl Iterator<Item = &Arc<Worker>> {
        self.workers.iter().filter(|worker| worker.state() == WorkerState::Ready)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Fleet {
    pub workers: Vec<Arc<Worker>>,
    pub models: BTreeMap<String, Arc<Served>>,
}

impl Fleet {
    /// What is asked for; without a name, the only base model there is.
    pub fn model(&self, name: Option<&str>) -> Option<&Arc<Served>> {
        match name {
            Some(name) => self.models.get(name),
            None => {
                let mut bases = self.models.values().filter(|served| served.lora_name.is_none());
                let first = bases.next()?;
                bases.all(|other| Arc::ptr_eq(&other.group, &first.group)).then_some(first)
            }
        }
    }

    /// The names, for people.
    pub fn names(&self) -> String {
        if self.models.is_empty() {
            return "none yet".to_owned();
        }
        let names: Vec<String> = self.models.keys().map(|name| format!("`{name}`")).collect();
        names.join(", ")
    }
}
