//! Weeks of KV events against the index's byte budget, in virtual time: workers store and evict as engines do, restart,
//! leave and come; the clock goes on by seconds. Hour by hour the index must hold its budget and say nothing that is not
//! so, and when everybody is gone nothing must be left.

use std::collections::{HashMap, VecDeque};

use anyhow::ensure;
use kvlane_indexer::{
    BlockHash, EngineBlockId, Index, IndexConfig, KvEvent, SequenceHash, StoredBlock, Tick, Tier, WorkerId,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// How long, and how much of it.
#[derive(Clone, Copy, Debug)]
pub struct Soak {
    pub days: f64,
    pub seed: u64,
    pub workers: usize,
    /// Blocks a worker's cache has.
    pub capacity: usize,
    pub max_bytes: usize,
}

impl Default for Soak {
    /// Some eighty thousand blocks, and bytes for about half of them.
    fn default() -> Self {
        Self { days: 30.0, seed: 1, workers: 8, capacity: 10_000, max_bytes: 1_500_000 }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Soaked {
    pub events: u64,
    pub restarts: u64,
    pub departures: u64,
    /// Bytes at every full hour, and of an index that never held anything.
    pub bytes: Vec<usize>,
    /// Blocks that are known at every full hour.
    pub held: Vec<usize>,
    pub empty_bytes: usize,
    /// Bytes when everybody is gone.
    pub rest_bytes: usize,
    /// Blocks given up to hold the budget.
    pub forgotten_blocks: u64,
    pub most_predicted_bytes: usize,
}

impl Soaked {
    /// Of the hours' bytes.
    pub fn rise(&self) -> f64 {
        rise_of(&self.bytes)
    }

    /// Of the blocks that are known: a leak within the budget would leave ever less room for them.
    pub fn held_rise(&self) -> f64 {
        rise_of(&self.held)
    }
}

/// By how much a line through the hours rises over all of them, as a share of their mean. The first hours, in which
/// caches fill, are left out.
fn rise_of(hours: &[usize]) -> f64 {
    let hours = &hours[(hours.len() / 8).min(12)..];
    let count = hours.len() as f64;
    let mean = hours.iter().sum::<usize>() as f64 / count.max(1.0);
    let middle = (count - 1.0) / 2.0;
    let (mut with, mut of) = (0.0, 0.0);
    for (at, hour) in hours.iter().enumerate() {
        with += (at as f64 - middle) * (*hour as f64 - mean);
        of += (at as f64 - middle).powi(2);
    }
    if of > 0.0 && mean > 0.0 { with / of * count / mean } else { 0.0 }
}

/// One conversation in a worker's cache: its own blocks, behind a system prompt that all share.
#[derive(Debug)]
struct Path {
    system: usize,
    blocks: Vec<StoredBlock>,
    last: SequenceHash,
}

#[derive(Debug)]
struct Worker {
    id: WorkerId,
    /// Which system prompts are stored, and conversations, the least recently used first.
    systems: [bool; SYSTEMS],
    paths: HashMap<u64, Path>,
    order: VecDeque<(u64, u64)>,
    used: HashMap<u64, u64>,
    blocks: usize,
    conversations: u64,
    /// Paths whose ends went, some of them, the latest last, and how much of each may still be there.
    gone: VecDeque<(Vec<SequenceHash>, usize)>,
    /// When it is there again, if it is away.
    away_until: Option<u32>,
}

const SYSTEMS: usize = 16;
const SYSTEM_BLOCKS: u64 = 48;
/// Paths that went and are looked for.
const REMEMBERED: usize = 64;
const HOUR: u32 = 3600;
/// Of every worker, in seconds: between two events, and about between two restarts.
const EVENT_EVERY: u32 = 2;
const RESTART_EVERY: u32 = 9 * HOUR;

struct Lab {
    index: Index,
    random: StdRng,
    systems: Vec<(Vec<StoredBlock>, SequenceHash)>,
    clock: u64,
    soaked: Soaked,
}

/// Runs it; an error says what did not hold.
pub fn soak(settings: &Soak, mut progress: impl FnMut(u32, usize)) -> anyhow::Result<Soaked> {
    let config = IndexConfig { max_bytes: settings.max_bytes, shards: 16, ..IndexConfig::default() };
    let system = |n: usize| {
        let mut blocks = Vec::new();
        let mut last = None;
        for at in 0..SYSTEM_BLOCKS {
            let block = block(last, BlockHash(1_000_000 + n as u64 * 1_000 + at));
            last = Some(block.1);
            blocks.push(block.0);
        }
        (blocks, last.unwrap_or(SequenceHash(0)))
    };
    let mut lab = Lab {
        index: Index::new(config),
        random: StdRng::seed_from_u64(settings.seed),
        systems: (0..SYSTEMS).map(system).collect(),
        clock: 0,
        soaked: Soaked { empty_bytes: Index::new(config).bytes(), ..Soaked::default() },
    };
    let mut workers: Vec<Worker> = (0..settings.workers).map(|n| Worker::new(n as u64)).collect();
    let mut instances = settings.workers as u64;
    for second in 0..(settings.days * 24.0 * f64::from(HOUR)) as u32 {
        for (n, worker) in workers.iter_mut().enumerate() {
            if (second + n as u32).is_multiple_of(EVENT_EVERY) {
                lab.turn(worker, settings.capacity, &mut instances, second)?;
            }
        }
        if second % HOUR == HOUR - 1 {
            lab.hour(&workers, second)?;
            progress(second / HOUR + 1, lab.index.bytes());
        }
    }
    for worker in &workers {
        lab.index.forget(worker.id);
    }
    let stats = lab.index.stats();
    ensure!(
        stats.workers.is_empty()
            && stats.nodes == 0
            && stats.distinct_blocks == 0
            && stats.predicted_blocks == 0,
        "everybody is gone, and left behind is {stats:?}"
    );
    (lab.soaked.rest_bytes, lab.soaked.forgotten_blocks) = (stats.bytes, stats.forgotten_blocks_total);
    // What tables keep for the next ones has a bound that does not depend on how long it went on.
    ensure!(
        stats.bytes <= lab.soaked.empty_bytes + settings.max_bytes / 100,
        "everybody is gone, and {} bytes are left; a new index has {}",
        stats.bytes,
        lab.soaked.empty_bytes
    );
    Ok(lab.soaked)
}

fn block(parent: Option<SequenceHash>, hash: BlockHash) -> (StoredBlock, SequenceHash) {
    let last = SequenceHash::after(parent, hash);
    (StoredBlock { id: EngineBlockId::from(last.0), hash }, last)
}

impl Worker {
    fn new(instance: u64) -> Self {
        Self {
            id: WorkerId::new(instance, 0),
            systems: [false; SYSTEMS],
            paths: HashMap::new(),
            order: VecDeque::new(),
            used: HashMap::new(),
            blocks: 0,
            conversations: 0,
            gone: VecDeque::new(),
            away_until: None,
        }
    }

    /// All of it gone, as with a new process.
    fn restarts(&mut self, instance: u64) {
        let (conversations, mut gone) = (self.conversations, std::mem::take(&mut self.gone));
        gone.iter_mut().for_each(|(_, most)| *most = (*most).min(SYSTEM_BLOCKS as usize));
        *self = Self { conversations, gone, ..Self::new(instance) };
    }

    fn uses(&mut self, conversation: u64, clock: u64) {
        self.used.insert(conversation, clock);
        self.order.push_back((conversation, clock));
    }
}

impl Lab {
    /// One worker's turn: a conversation goes on or begins, and what there is no room for goes.
    fn turn(
        &mut self,
        worker: &mut Worker,
        capacity: usize,
        instances: &mut u64,
        now: u32,
    ) -> anyhow::Result<()> {
        if let Some(until) = worker.away_until {
            if now < until {
                return Ok(());
            }
            // It comes back under another name.
            worker.restarts(*instances);
            *instances += 1;
        }
        if self.random.random_range(0..RESTART_EVERY / EVENT_EVERY) == 0 {
            self.index.forget(worker.id);
            if self.random.random_bool(0.3) {
                worker.away_until = Some(now + self.random.random_range(1..3 * HOUR));
                self.soaked.departures += 1;
                return Ok(());
            }
            worker.restarts(worker.id.instance);
            self.soaked.restarts += 1;
        }
        self.clock += 1;
        let goes_on = worker.conversations > 0 && self.random.random_bool(0.8);
        let conversation = if goes_on {
            worker.conversations - self.random.random_range(0..worker.conversations.min(200))
        } else {
            worker.conversations += 1;
            worker.conversations
        };
        let system = match worker.paths.get(&conversation) {
            Some(path) => path.system,
            None => self.random.random_range(0..SYSTEMS),
        };
        if !std::mem::replace(&mut worker.systems[system], true) {
            let blocks = self.systems[system].0.clone();
            worker.blocks += blocks.len();
            self.tell(worker.id, &KvEvent::Stored { tier: Tier::Device, parent: None, blocks }, now)?;
        }
        let (last_of_system, start) = (self.systems[system].1, Vec::new());
        let path =
            worker.paths.entry(conversation).or_insert(Path { system, blocks: start, last: last_of_system });
        let parent = Some(EngineBlockId::from(path.last.0));
        let mut blocks = Vec::new();
        for _ in 0..self.random.random_range(1..=24) {
            let (stored, last) = block(Some(path.last), BlockHash(self.random.random()));
            path.last = last;
            blocks.push(stored);
        }
        path.blocks.extend(&blocks);
        worker.blocks += blocks.len();
        let prompt: Vec<SequenceHash> = self.systems[system]
            .0
            .iter()
            .chain(&path.blocks)
            .map(|block| SequenceHash(block.id.to_u64()))
            .collect();
        worker.uses(conversation, self.clock);
        let tick = Tick(now);
        self.index.predict(worker.id, &prompt, tick);
        let _ = self.index.overlap(&prompt, tick);
        self.tell(worker.id, &KvEvent::Stored { tier: Tier::Device, parent, blocks }, now)?;
        self.evict(worker, capacity, now)
    }

    /// The least recently used conversations go, from their ends.
    fn evict(&mut self, worker: &mut Worker, capacity: usize, now: u32) -> anyhow::Result<()> {
        while worker.blocks > capacity {
            let Some((conversation, clock)) = worker.order.pop_front() else { break };
            if worker.used.get(&conversation) != Some(&clock) {
                continue;
            }
            let Some(path) = worker.paths.get_mut(&conversation) else { continue };
            let gone = path.blocks.len().min(worker.blocks - capacity);
            let rest = path.blocks.len() - gone;
            let whole = self.systems[path.system].0.iter().chain(&path.blocks);
            let whole = whole.map(|block| SequenceHash(block.id.to_u64())).collect();
            worker.gone.push_back((whole, SYSTEM_BLOCKS as usize + rest));
            if worker.gone.len() > REMEMBERED {
                worker.gone.pop_front();
            }
            let ids: Vec<EngineBlockId> = path.blocks.drain(rest..).rev().map(|block| block.id).collect();
            worker.blocks -= ids.len();
            match path.blocks.last() {
                Some(last) => {
                    path.last = SequenceHash(last.id.to_u64());
                    worker.order.push_front((conversation, clock));
                }
                None => {
                    worker.paths.remove(&conversation);
                    worker.used.remove(&conversation);
                }
            }
            self.tell(worker.id, &KvEvent::Removed { tier: Tier::Device, ids }, now)?;
        }
        Ok(())
    }

    fn tell(&mut self, worker: WorkerId, event: &KvEvent, now: u32) -> anyhow::Result<()> {
        let _ = self.index.apply(worker, event, Tick(now))?;
        self.soaked.events += 1;
        Ok(())
    }

    /// What must hold at every full hour.
    fn hour(&mut self, workers: &[Worker], now: u32) -> anyhow::Result<()> {
        let stats = self.index.stats();
        ensure!(
            stats.bytes <= stats.max_bytes,
            "hour {}: {} bytes, expected at most {}",
            now / HOUR,
            stats.bytes,
            stats.max_bytes
        );
        self.soaked.bytes.push(stats.bytes);
        self.soaked.held.push(stats.workers.iter().map(|worker| worker.device_blocks).sum());
        self.soaked.most_predicted_bytes = self.soaked.most_predicted_bytes.max(stats.predicted_bytes);
        for worker in workers {
            let there = worker.away_until.is_none();
            let held = worker.paths.values().map(|path| {
                let system = self.systems[path.system].0.iter();
                let prompt = system.chain(&path.blocks).map(|block| SequenceHash(block.id.to_u64()));
                let prompt: Vec<SequenceHash> = prompt.collect();
                let most = if there { prompt.len() } else { 0 };
                (prompt, most)
            });
            let gone =
                worker.gone.iter().map(|(prompt, most)| (prompt.clone(), if there { *most } else { 0 }));
            for (prompt, most) in held.chain(gone) {
                let known = self.index.overlap(&prompt, Tick(now)).of(worker.id).device as usize;
                ensure!(known <= most, "hour {}: {known} blocks are known, there are {most}", now / HOUR);
            }
        }
        Ok(())
    }
}
