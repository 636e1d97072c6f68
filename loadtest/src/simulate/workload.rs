//! Conversations: who says how much when, and which blocks that makes.

use kvlane_indexer::BlockHash;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp1, Normal, Zipf};

use super::settings::{ArrivalKind, WorkloadSettings};
use crate::arrivals::Pattern;

#[derive(Debug)]
pub(crate) struct Workload {
    settings: WorkloadSettings,
    block_tokens: usize,
    random: StdRng,
    /// For when conversations begin, which must not depend on how they go.
    arrivals: StdRng,
    /// Tokens of each document.
    starters: Vec<usize>,
    /// Which are asked about how often; all equally when none.
    popularity: Option<Zipf<f64>>,
    conversations: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Conversation {
    number: u64,
    starter: usize,
    turns: usize,
    turn: usize,
    /// Tokens said so far, the document included.
    tokens: usize,
}

impl Conversation {
    pub(crate) fn id(&self) -> u64 {
        self.number
    }

    /// From 1 on, once it has begun.
    pub(crate) fn turn(&self) -> usize {
        self.turn
    }
}

/// One turn, about to be asked.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) prompt_tokens: usize,
    pub(crate) answer_tokens: usize,
    /// Full blocks of prompt and answer.
    pub(crate) blocks: Vec<BlockHash>,
}

impl Workload {
    pub(crate) fn new(settings: &WorkloadSettings, block_tokens: usize, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let (short, long) = settings.starter_tokens;
        let starters = (0..settings.starters).map(|_| uniform(&mut random, short, long)).collect();
        let popularity =
            (settings.zipf > 0.0).then(|| Zipf::new(settings.starters as f64, settings.zipf).ok()).flatten();
        let arrivals = StdRng::seed_from_u64(seed ^ 0x00A2_21FA_15ED);
        let settings = settings.clone();
        Self { settings, block_tokens, random, arrivals, starters, popularity, conversations: 0 }
    }

    /// One that begins now. `initial` is one of those that a level begins with.
    pub(crate) fn conversation(&mut self, initial: bool) -> Conversation {
        self.conversations += 1;
        let starter = match &self.popularity {
            Some(zipf) => (zipf.sample(&mut self.random) as usize).clamp(1, self.starters.len()) - 1,
            None => self.random.random_range(0..self.starters.len()),
        };
        let (few, many) = self.settings.turns;
        let turns = self.random.random_range(few..=many);
        let tokens = self.starters[starter] + self.settings.template_tokens;
        let mut conversation = Conversation { number: self.conversations, starter, turns, turn: 0, tokens };
        if initial && self.settings.steady_start {
            let past = self.random.random_range(0..turns);
            for _ in 0..past {
                self.says(&mut conversation);
            }
        }
        conversation
    }

    /// The next turn of a conversation, its answer's length drawn beforehand.
    pub(crate) fn turn(&mut self, conversation: &mut Conversation) -> Turn {
        let (prompt_tokens, answer_tokens) = self.says(conversation);
        let blocks =
            (0..conversation.tokens / self.block_tokens).map(|at| self.block_of(conversation, at)).collect();
        Turn { prompt_tokens, answer_tokens, blocks }
    }

    /// Tokens of the next turn's prompt, with everything before it, and of its answer.
    fn says(&mut self, conversation: &mut Conversation) -> (usize, usize) {
        conversation.turn += 1;
        let (mean, deviation) = if conversation.turn == 1 {
            self.settings.first_answer_tokens
        } else {
            let (short, long) = self.settings.question_tokens;
            conversation.tokens += uniform(&mut self.random, short, long);
            self.settings.answer_tokens
        };
        let (least, most) = self.settings.answer_bounds;
        let drawn = Normal::new(mean, deviation).map_or(mean, |normal| normal.sample(&mut self.random));
        let answer_tokens = (drawn.max(0.0) as usize).clamp(least, most);
        let prompt_tokens = conversation.tokens;
        conversation.tokens += answer_tokens;
        (prompt_tokens, answer_tokens)
    }

    /// Blocks of a document are everybody's, the others the conversation's own.
    fn block_of(&self, conversation: &Conversation, at: usize) -> BlockHash {
        let common = self.starters[conversation.starter] as f64 * self.settings.shared;
        let shared = at < common as usize / self.block_tokens;
        let owner = if shared { conversation.starter as u64 } else { 1 << 32 | conversation.number };
        block(owner, at)
    }

    /// Seconds until the next turn; none when the conversation is over.
    pub(crate) fn think_s(&mut self, conversation: &Conversation) -> Option<f64> {
        if conversation.turn == conversation.turns {
            return None;
        }
        let drawn: f64 = Exp1.sample(&mut self.random);
        Some(drawn * self.settings.think_s)
    }

    /// Until the next conversation begins, at so many a minute.
    pub(crate) fn arrival_gap_ms(&mut self, per_minute: usize) -> f64 {
        let pattern = match self.settings.arrivals {
            ArrivalKind::Closed | ArrivalKind::Constant => Pattern::Constant,
            ArrivalKind::Poisson => Pattern::Poisson,
            ArrivalKind::Gamma => Pattern::Gamma { shape: self.settings.burstiness },
        };
        pattern.gap(&mut self.arrivals) * 60_000.0 / per_minute as f64
    }

    pub(crate) fn random(&mut self) -> &mut StdRng {
        &mut self.random
    }
}

/// The block at a place of something that only `owner` has.
pub(super) fn block(owner: u64, at: usize) -> BlockHash {
    let mixed = (owner << 24 ^ at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    BlockHash((mixed ^ mixed >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93))
}

fn uniform(random: &mut StdRng, low: f64, high: f64) -> usize {
    random.random_range(low..=high) as usize
}
