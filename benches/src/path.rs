//! A request's path through the router, without its network: what is asked, of whom, and how it is decided.

use std::sync::Arc;
use std::time::Duration;

use kvlane_indexer::{
    BlockHasher, BlockSize, EngineBlockId, Index, KvEvent, Namespace, SequenceHash, StoredBlock, Tick, Tier,
    TokenId, WorkerId,
};
use kvlane_router::scheduling::{Candidate, Demand, Placement, Policy, Scheduler, Standing, Weights};
use serde_json::{Map, Value, json};

use crate::random::Random;
use crate::{index, worker};

/// Fleets of these sizes.
pub const PATH_WORKERS: [usize; 4] = [4, 64, 256, 1024];
pub const WEIGHTS: Weights = Weights::KVLANE;
const BLOCK: u32 = 16;

/// A chat of about so many tokens, in three messages.
pub fn chat(tokens: usize) -> Vec<Map<String, Value>> {
    let mut random = Random::new(tokens as u64);
    let words =
        ["the", "router", "asks", "index", "which", "worker", "holds", "prompt,", "block", "after", "block."];
    let mut text = |count: usize| {
        let word = |_| words[random.below(words.len() as u64) as usize];
        (0..count).map(word).collect::<Vec<_>>().join(" ")
    };
    let message = |role: &str, content: String| {
        Map::from_iter([("role".to_owned(), json!(role)), ("content".to_owned(), json!(content))])
    };
    let long = tokens.saturating_sub(150);
    vec![message("user", text(long)), message("assistant", text(100)), message("user", text(50))]
}

/// One event of a stream as vLLM sends it.
pub fn chunk(text: &str) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\
         \"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\"logprobs\":null,\
         \"finish_reason\":null,\"token_ids\":null}}]}}\n\n"
    )
}

/// Workers of all kinds, none like the other.
pub fn candidates(workers: usize) -> Vec<Candidate> {
    let mut random = Random::new(workers as u64);
    let candidate = |n: usize| Candidate {
        worker: worker(n),
        own_blocks: random.below(2000) as f64 / 16.0,
        ahead_blocks: random.below(2000) as f64 / 16.0,
        decode_blocks: random.below(10_000) as f64,
        active_requests: random.below(64) as usize,
        slots: None,
        stay_blocks: None,
        home: false,
        tie_break: 0,
        barred: None,
    };
    (0..workers).map(candidate).collect()
}

/// A prompt that some of many busy workers hold a part of.
#[derive(Debug)]
pub struct PathCase {
    tokens: Vec<TokenId>,
    hasher: BlockHasher,
    index: Index,
    scheduler: Arc<Scheduler>,
    standings: Vec<Standing>,
    /// What they are busy with.
    _busy: Vec<Placement>,
}

impl PathCase {
    pub fn new(tokens: usize, workers: usize) -> Self {
        let mut random = Random::new(tokens as u64 ^ workers as u64);
        let tokens: Vec<TokenId> = (0..tokens).map(|_| random.below(128_000) as TokenId).collect();
        let Some(size) = BlockSize::new(BLOCK) else { unreachable!("sixteen is a size") };
        let hasher = BlockHasher::new(size, Namespace::default());
        let index = index();
        let blocks: Vec<StoredBlock> = hasher
            .blocks(&tokens)
            .enumerate()
            .map(|(n, hash)| StoredBlock { id: EngineBlockId::from(n as u64), hash })
            .collect();
        // A tenth of them hold a beginning of it.
        for n in (0..workers).step_by(10) {
            let held = 1 + random.below(blocks.len() as u64) as usize;
            let stored =
                KvEvent::Stored { tier: Tier::Device, parent: None, blocks: blocks[..held].to_vec() };
            if index.apply(worker(n), &stored, Tick(1)).is_err() {
                unreachable!("a path from its beginning is always stored");
            }
        }
        let scheduler = Scheduler::new(Policy::Kv(WEIGHTS), 1024, 0.0);
        let standings: Vec<Standing> = (0..workers).map(|n| Standing::of(worker(n))).collect();
        let mut case = Self { tokens, hasher, index, scheduler, standings, _busy: Vec::new() };
        // Two requests each, on prompts of their own.
        for n in 0..2 * workers as u64 {
            let other: Vec<SequenceHash> = (0..100).map(|block| SequenceHash(n << 32 | block)).collect();
            let demand = case.demand(other.into(), 1600);
            let alone = [Standing::of(worker(n as usize % workers))];
            let placed =
                case.scheduler.place(&demand, &kvlane_indexer::Overlap::default(), &alone, n, Duration::ZERO);
            case._busy.extend(placed);
        }
        case
    }

    fn demand(&self, blocks: Arc<[SequenceHash]>, prompt_tokens: usize) -> Demand {
        Demand {
            blocks,
            prompt_tokens,
            block_tokens: BLOCK as usize,
            session: None,
            room: None,
            streamed: true,
            arrived: Duration::ZERO,
        }
    }

    /// Who holds how much of it: how many do.
    pub fn overlap(&self) -> usize {
        let hashes = self.hasher.sequence(&self.tokens);
        self.index.overlap(&hashes, Tick(1)).device().len()
    }

    /// Everything from tokens to a worker, and back.
    pub fn decide(&self) -> Option<WorkerId> {
        let hashes = self.hasher.sequence(&self.tokens);
        let overlap = self.index.overlap(&hashes, Tick(1));
        let demand = self.demand(hashes.into(), self.tokens.len());
        let placed = self.scheduler.place(&demand, &overlap, &self.standings, 7, Duration::from_secs(1));
        placed.ok().map(|placed| placed.reservation.worker())
    }
}
