//! Seeded workloads for the benches: what engines would say, and what requests would ask.
//!
//! Everything is made before a clock starts. Two shapes:
//!
//! - [`multi_turn`]: 10 documents of 110 blocks, 4,000 conversations of 5 turns over them;
//! - [`trace`]: requests of a Mooncake-format trace in 16-token blocks over caches that evict, read from the
//!   file that `KVLANE_TRACE` names, or made up in the same shape: one root, bursts, long tails.

pub mod heap;
mod lru;
mod mooncake;
pub mod path;
pub mod random;

use std::collections::HashSet;
use std::time::Instant;

use kvlane_indexer::{
    BlockHash, EngineBlockId, Index, IndexConfig, KvEvent, SequenceHash, StoredBlock, Tick, Tier, WorkerId,
};

pub use self::mooncake::{Request, trace_requests};
use self::random::{Random, mix};

pub type Events = Vec<(WorkerId, KvEvent)>;

/// What engines say, in order, and what is asked afterwards.
#[derive(Debug, Default)]
pub struct Workload {
    /// Stores, or stores with the removals that made room for them.
    pub history: Events,
    /// Removes what the history left, each worker's paths from their ends.
    pub drain: Events,
    pub prompts: Vec<Prompt>,
}

#[derive(Clone, Debug, Default)]
pub struct Prompt {
    pub blocks: Vec<BlockHash>,
    pub hashes: Vec<SequenceHash>,
}

impl Prompt {
    pub fn new(blocks: Vec<BlockHash>) -> Self {
        let hashes = SequenceHash::chain(None, blocks.iter().copied()).collect();
        Self { blocks, hashes }
    }

    /// Blocks `from..to` as the engine of any worker would announce them; the names are the engine's own.
    fn stored(&self, from: usize, to: usize) -> KvEvent {
        let block = |at: usize| StoredBlock { id: self.id(at), hash: self.blocks[at] };
        let parent = from.checked_sub(1).map(|at| self.id(at));
        KvEvent::Stored { tier: Tier::Device, parent, blocks: (from..to).map(block).collect() }
    }

    fn id(&self, at: usize) -> EngineBlockId {
        EngineBlockId::from(mix(self.hashes[at].0 ^ 0x5EED))
    }

    /// Blocks `from..to` gone, the last one first.
    fn removed(&self, from: usize, to: usize) -> KvEvent {
        KvEvent::Removed { tier: Tier::Device, ids: (from..to).rev().map(|at| self.id(at)).collect() }
    }
}

pub fn worker(n: usize) -> WorkerId {
    WorkerId::new(n as u64, 0)
}

pub const DOCUMENTS: u64 = 10;
pub const DOCUMENT_BLOCKS: usize = 110;
pub const CONVERSATIONS: u64 = 4000;
pub const TURNS: usize = 5;
pub const TURN_BLOCKS: usize = 12;
/// The last turn's prompt: its answer is still to come.
pub const PROMPT_BLOCKS: usize = DOCUMENT_BLOCKS + TURNS * TURN_BLOCKS - 1;

/// Conversations over shared documents, each kept on one worker. Asked: every conversation's last prompt, in
/// random order.
pub fn multi_turn(workers: usize) -> Workload {
    let conversation = |n: u64| {
        let block = |at: usize| {
            let owner = if at < DOCUMENT_BLOCKS { n % DOCUMENTS } else { DOCUMENTS + n };
            BlockHash(mix(owner << 20 | at as u64))
        };
        Prompt::new((0..DOCUMENT_BLOCKS + TURNS * TURN_BLOCKS).map(block).collect())
    };
    let conversations: Vec<_> = (0..CONVERSATIONS).map(conversation).collect();
    let home = |n: usize| (mix(n as u64 ^ 0xC0FFEE) % workers as u64) as usize;

    let mut workload = Workload::default();
    let mut documents = HashSet::new();
    let mut drain: Vec<Events> = vec![Vec::new(); workers];
    for turn in 0..TURNS {
        for (n, prompt) in conversations.iter().enumerate() {
            let home = home(n);
            let mut store = |from, to| {
                workload.history.push((worker(home), prompt.stored(from, to)));
                drain[home].push((worker(home), prompt.removed(from, to)));
            };
            if turn == 0 && documents.insert((home, n as u64 % DOCUMENTS)) {
                store(0, DOCUMENT_BLOCKS);
            }
            let from = DOCUMENT_BLOCKS + turn * TURN_BLOCKS;
            store(from, from + TURN_BLOCKS);
        }
    }
    // Each worker evicts what came last first, so that every path goes from its end.
    let longest = drain.iter().map(Vec::len).max().unwrap_or(0);
    for _ in 0..longest {
        workload.drain.extend(drain.iter_mut().filter_map(Vec::pop));
    }
    workload.prompts = conversations;
    for prompt in &mut workload.prompts {
        prompt.blocks.truncate(PROMPT_BLOCKS);
        prompt.hashes.truncate(PROMPT_BLOCKS);
    }
    Random::new(7).shuffle(&mut workload.prompts);
    workload
}

/// Blocks one worker of the reference deployment caches: 10,662 blocks of 32 tokens, in blocks of 16.
pub const CACHE_BLOCKS: usize = 2 * 10_662;

/// A trace's requests over `workers` caches that evict. Asked: the requests themselves, in order.
pub fn trace(requests: &[Request], workers: usize) -> Workload {
    let mut caches: Vec<_> = (0..workers).map(|_| lru::Cache::new(CACHE_BLOCKS)).collect();
    let mut random = Random::new(11);
    let mut workload = Workload::default();
    for (time, request) in requests.iter().enumerate() {
        let prompt = Prompt::new(request.blocks());
        // Follow-ups go where their conversation went; one in five strays, so that prefixes have several homes.
        let home = if random.below(5) == 0 { random.next() } else { mix(request.conversation()) };
        let home = (home % workers as u64) as usize;
        caches[home].serve(time as u64, &prompt, |event| workload.history.push((worker(home), event)));
        workload.prompts.push(prompt);
    }
    for (home, cache) in caches.into_iter().enumerate() {
        workload.drain.extend(cache.drain().into_iter().map(|event| (worker(home), event)));
    }
    workload
}

/// Whether one event removes exactly what the other stored.
pub fn undoes(removal: &KvEvent, store: &KvEvent) -> bool {
    match (removal, store) {
        (KvEvent::Removed { ids, .. }, KvEvent::Stored { blocks, .. }) => {
            ids.iter().rev().eq(blocks.iter().map(|block| &block.id))
        }
        _ => false,
    }
}

/// How many blocks events speak of.
pub fn block_count(events: &Events) -> usize {
    let blocks = |event: &KvEvent| match event {
        KvEvent::Stored { blocks, .. } => blocks.len(),
        KvEvent::Removed { ids, .. } => ids.len(),
        KvEvent::Cleared { .. } => 0,
    };
    events.iter().map(|(_, event)| blocks(event)).sum()
}

/// An index without a byte budget in the way.
pub fn index() -> Index {
    Index::new(IndexConfig { max_bytes: usize::MAX, ..IndexConfig::default() })
}

/// Applies events and insists that each was understood whole.
pub fn apply(index: &Index, events: &Events) {
    for (worker, event) in events {
        match index.apply(*worker, event, Tick(1)) {
            Ok(applied) => debug_assert_eq!((applied.orphaned, applied.unknown), (0, 0)),
            Err(refused) => unreachable!("fixtures make possible events only: {refused}"),
        }
    }
}

/// Microseconds an act takes, the middle of many: what the machine does besides is not asked for.
pub fn median_us(mut act: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..1000)
        .map(|_| {
            #[allow(clippy::disallowed_methods, reason = "a bench's clock")]
            let begun = Instant::now();
            act();
            begun.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}
