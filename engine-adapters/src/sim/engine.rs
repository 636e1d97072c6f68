//! The engine itself: who is in the batch, what a step carries, what comes out of it.

use std::collections::VecDeque;

use kvlane_indexer::{BlockHash, EngineBlockId, KvEvent, SequenceHash, StoredBlock, Tier};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::cache::BlockCache;
use super::{Calibration, SimTime, Work};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A request whose answer is known beforehand, as a simulation's is.
#[derive(Clone, Debug)]
pub struct Request {
    pub id: RequestId,
    pub prompt_tokens: usize,
    pub output_tokens: usize,
    /// What each full block of prompt and answer together contains.
    pub blocks: Vec<BlockHash>,
    /// Higher goes first; equals in the order they came.
    pub priority: i32,
}

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    #[error("request needs {needed} blocks of KV cache, expected at most {capacity}")]
    TooLong { needed: usize, capacity: usize },
    #[error("request has {found} block hashes for {expected} full blocks of prompt and answer")]
    WrongBlocks { found: usize, expected: usize },
    #[error("request has an empty {field}, expected at least one token")]
    Empty { field: &'static str },
}

/// Tokens one request gets from a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokensOut {
    pub request: RequestId,
    pub count: usize,
    /// Set when the first of them is the answer's first.
    pub first: Option<FirstToken>,
    /// When the engine hands them out.
    pub at: SimTime,
}

/// What is known of a request once it begins to answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FirstToken {
    pub prompt_tokens: usize,
    /// Prompt tokens that were not computed, because they were cached.
    pub cached_tokens: usize,
    /// From submission until it joined the batch.
    pub queued_ms: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finished {
    pub request: RequestId,
    pub at: SimTime,
    pub prompt_tokens: usize,
    pub output_tokens: usize,
    /// Prompt tokens that were not computed, because they were cached.
    pub cached_tokens: usize,
    /// From submission until it joined the batch.
    pub queued_ms: f64,
}

/// Speculation so far: how often a draft was made, its tokens, and those the model agreed with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drafts {
    pub drafts: u64,
    pub tokens: u64,
    pub accepted: u64,
}

/// Whose blocks an event announces: `request`'s, from its block number `first_block` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub request: RequestId,
    pub first_block: usize,
}

/// What has come out since the last call, and when to call again. Meant to be used again.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    pub tokens: Vec<TokensOut>,
    pub finished: Vec<Finished>,
    pub events: Vec<KvEvent>,
    /// For each stored event in turn, whose blocks it announces; who speaks to others needs their tokens.
    pub origins: Vec<Origin>,
    /// When the running step ends; none when there is nothing to do.
    pub next: Option<SimTime>,
}

impl StepOutput {
    fn clear(&mut self) {
        self.tokens.clear();
        self.finished.clear();
        self.events.clear();
        self.origins.clear();
        self.next = None;
    }
}

#[derive(Debug)]
struct Sequence {
    request: Request,
    path: Vec<SequenceHash>,
    submitted: SimTime,
    queued_ms: f64,
    cached_tokens: usize,
    /// Tokens whose keys and values are in the cache.
    computed: usize,
    /// Leading blocks of the path this sequence pins.
    pinned: usize,
    /// Leading blocks announced as stored, or found cached.
    announced: usize,
    /// Blocks promised to it and not yet filled.
    reserved: usize,
    generated: usize,
}

impl Sequence {
    /// Tokens to compute before the next one comes out: the prompt, and after a preemption what was generated.
    fn to_prefill(&self) -> usize {
        self.request.prompt_tokens + self.generated - self.computed
    }
}

#[derive(Debug)]
struct Running {
    ends: SimTime,
    /// What a step without prefill would take; the lag of the overlap scheduler is counted in these.
    decode_ms: f64,
}

/// See the [module](super).
#[derive(Debug)]
pub struct SimEngine {
    calibration: Calibration,
    cache: BlockCache,
    waiting: VecDeque<Sequence>,
    prefilling: Vec<Sequence>,
    decoding: Vec<Sequence>,
    running: Option<Running>,
    /// Cached tokens all decoding sequences read in a step.
    context: u64,
    reserved: usize,
    evicted: Vec<EngineBlockId>,
    preemptions: u64,
    drafts: Drafts,
    /// When the last tokens were handed out.
    last_out: SimTime,
    random: StdRng,
}

impl SimEngine {
    pub fn new(calibration: Calibration, seed: u64) -> Self {
        Self {
            cache: BlockCache::new(calibration.kv_blocks),
            calibration,
            waiting: VecDeque::new(),
            prefilling: Vec::new(),
            decoding: Vec::new(),
            running: None,
            context: 0,
            reserved: 0,
            evicted: Vec::new(),
            preemptions: 0,
            drafts: Drafts::default(),
            last_out: SimTime::default(),
            random: StdRng::seed_from_u64(seed),
        }
    }

    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// Requests in the batch.
    pub fn running_count(&self) -> usize {
        self.prefilling.len() + self.decoding.len()
    }

    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// Blocks in use by requests, and blocks in the cache at all.
    pub fn block_counts(&self) -> (usize, usize) {
        (self.cache.pinned() + self.reserved, self.cache.len())
    }

    /// How many leading blocks of a prompt are computed and there: what anybody may claim of this cache, and no more.
    pub fn cached_prefix(&self, prompt: &[SequenceHash]) -> usize {
        self.cache.ready_prefix(prompt)
    }

    pub fn preemption_count(&self) -> u64 {
        self.preemptions
    }

    pub fn drafts(&self) -> Drafts {
        self.drafts
    }

    /// Takes a request. Call [`step`](Self::step) afterwards: it may start at once.
    pub fn submit(&mut self, now: SimTime, request: Request) -> Result<(), SubmitError> {
        for (field, tokens) in [("prompt", request.prompt_tokens), ("answer", request.output_tokens)] {
            if tokens == 0 {
                return Err(SubmitError::Empty { field });
            }
        }
        let tokens = request.prompt_tokens + request.output_tokens;
        let expected = tokens / self.calibration.block_tokens;
        if request.blocks.len() != expected {
            return Err(SubmitError::WrongBlocks { found: request.blocks.len(), expected });
        }
        let (needed, capacity) = (tokens.div_ceil(self.calibration.block_tokens), self.cache.capacity());
        if needed > capacity {
            return Err(SubmitError::TooLong { needed, capacity });
        }
        let sequence = Sequence {
            path: SequenceHash::chain(None, request.blocks.iter().copied()).collect(),
            request,
            submitted: now,
            queued_ms: 0.0,
            cached_tokens: 0,
            computed: 0,
            pinned: 0,
            announced: 0,
            reserved: 0,
            generated: 0,
        };
        self.enqueue(sequence);
        Ok(())
    }

    /// Behind its equals in priority.
    fn enqueue(&mut self, sequence: Sequence) {
        let priority = sequence.request.priority;
        let at = self.waiting.iter().rposition(|other| other.request.priority >= priority);
        self.waiting.insert(at.map_or(0, |at| at + 1), sequence);
    }

    /// Gives a request up; false when it is not here (any more). Its blocks are free at once.
    pub fn cancel(&mut self, request: RequestId) -> bool {
        let is = |sequence: &Sequence| sequence.request.id == request;
        if let Some(at) = self.waiting.iter().position(is) {
            self.waiting.remove(at);
            return true;
        }
        if let Some(at) = self.prefilling.iter().position(is) {
            let sequence = self.prefilling.remove(at);
            self.let_go(&sequence);
            return true;
        }
        let Some(at) = self.decoding.iter().position(is) else { return false };
        let sequence = self.decoding.remove(at);
        self.context -= sequence.computed as u64;
        self.let_go(&sequence);
        true
    }

    /// Empties the prefix cache of everything no request uses, as an engine's reset does.
    pub fn reset_cache(&mut self, output: &mut StepOutput) {
        output.clear();
        self.cache.clear(&mut self.evicted);
        self.announce_evicted(output);
    }

    /// Finishes the running step if it is over by `now`, and starts the next one if there is work.
    pub fn step(&mut self, now: SimTime, output: &mut StepOutput) {
        output.clear();
        match &self.running {
            Some(running) if now < running.ends => {
                output.next = Some(running.ends);
                return;
            }
            Some(Running { ends, decode_ms }) => {
                // Tokens never overtake those of an earlier step, however much longer that one took.
                let at = ends.after_ms(self.calibration.lag_steps * decode_ms).max(self.last_out);
                self.last_out = at;
                self.running = None;
                self.finish(at, output);
            }
            None => {}
        }
        self.admit(now);
        self.announce_evicted(output);
        self.start(now);
        output.next = self.running.as_ref().map(|running| running.ends);
    }

    /// What the step computed comes out.
    fn finish(&mut self, at: SimTime, output: &mut StepOutput) {
        let mut index = 0;
        while index < self.decoding.len() {
            let count = self.tokens_per_step();
            let sequence = &mut self.decoding[index];
            let count = count.min(sequence.request.output_tokens - sequence.generated);
            self.context += count as u64;
            index = self.give(index, count, at, output);
        }
        self.end_prefill(at, output);
        // A last block may have come in past the bound, its sequence about to leave.
        self.make_room(output);
    }

    /// Evicts down to what is not promised to anyone, and says so at once: events come as things happened.
    fn make_room(&mut self, output: &mut StepOutput) {
        self.cache.evict_to(self.cache.capacity().saturating_sub(self.reserved), &mut self.evicted);
        self.announce_evicted(output);
    }

    /// Hands tokens to the decoding sequence at `index`, and says which one is next.
    fn give(&mut self, index: usize, count: usize, at: SimTime, output: &mut StepOutput) -> usize {
        let sequence = &mut self.decoding[index];
        let request = sequence.request.id;
        let first = (sequence.generated == 0).then_some(FirstToken {
            prompt_tokens: sequence.request.prompt_tokens,
            cached_tokens: sequence.cached_tokens,
            queued_ms: sequence.queued_ms,
        });
        sequence.generated += count;
        sequence.computed += count;
        output.tokens.push(TokensOut { request, count, first, at });
        // The last token out has been sampled and not computed: its keys and values come with the next step.
        let full = ((sequence.computed - 1) / self.calibration.block_tokens).min(sequence.path.len());
        let index = if full > sequence.pinned { self.fill_blocks(index, full, output) } else { Ok(index) };
        let index = match index {
            Ok(index) => index,
            // Preempted: its place in the list is another's now.
            Err(gone) => return gone,
        };
        let sequence = &self.decoding[index];
        if sequence.generated < sequence.request.output_tokens {
            return index + 1;
        }
        let sequence = self.decoding.swap_remove(index);
        self.context -= sequence.computed as u64;
        self.retire(&sequence, at, output);
        index
    }

    fn tokens_per_step(&mut self) -> usize {
        let Some(speculation) = self.calibration.speculation else { return 1 };
        let accepted = |_: &usize| self.random.random_bool(speculation.acceptance);
        let accepted = (0..speculation.draft_tokens).filter(accepted).count();
        self.drafts.drafts += 1;
        self.drafts.tokens += speculation.draft_tokens as u64;
        self.drafts.accepted += accepted as u64;
        1 + accepted
    }

    /// The blocks of the sequence at `index` are complete up to `full`. Says where the sequence is now, or where
    /// it was when it had to leave for want of room.
    fn fill_blocks(&mut self, index: usize, full: usize, output: &mut StepOutput) -> Result<usize, usize> {
        let sequence = &mut self.decoding[index];
        for at in sequence.pinned..full {
            self.cache.pin(sequence.path[at]);
            if sequence.reserved > 0 {
                sequence.reserved -= 1;
                self.reserved -= 1;
            }
        }
        sequence.pinned = full;
        announce(&mut self.cache, sequence, full, output);
        let mut place = Ok(index);
        if sequence.generated < sequence.request.output_tokens {
            if sequence.reserved == 0 {
                sequence.reserved = 1;
                self.reserved += 1;
            }
            while let Ok(index) = place
                && self.cache.pinned() + self.reserved > self.cache.capacity()
            {
                let victim = self.preempt();
                place = if victim == index { Err(index) } else { Ok(index - usize::from(victim < index)) };
            }
        }
        self.make_room(output);
        place
    }

    /// Sends the youngest decoding sequence of the lowest priority back to wait, and says where it was.
    fn preempt(&mut self) -> usize {
        let youngest = |at: &usize| {
            let sequence = &self.decoding[*at];
            (std::cmp::Reverse(sequence.request.priority), sequence.submitted, sequence.request.id)
        };
        let victim = (0..self.decoding.len()).max_by_key(youngest).unwrap_or(0);
        let mut sequence = self.decoding.remove(victim);
        self.preemptions += 1;
        self.context -= sequence.computed as u64;
        self.let_go(&sequence);
        (sequence.pinned, sequence.announced, sequence.reserved, sequence.computed) = (0, 0, 0, 0);
        // Ahead of its equals: it has waited before.
        let priority = sequence.request.priority;
        let at = self.waiting.iter().position(|other| other.request.priority <= priority);
        self.waiting.insert(at.unwrap_or(self.waiting.len()), sequence);
        victim
    }

    fn end_prefill(&mut self, at: SimTime, output: &mut StepOutput) {
        let block_tokens = self.calibration.block_tokens;
        let mut index = 0;
        while index < self.prefilling.len() {
            let sequence = &mut self.prefilling[index];
            let full = (sequence.computed / block_tokens).min(sequence.pinned);
            announce(&mut self.cache, sequence, full, output);
            if sequence.to_prefill() > 0 {
                index += 1;
                continue;
            }
            let sequence = self.prefilling.remove(index);
            self.context += sequence.computed as u64 + 1;
            self.decoding.push(sequence);
            self.give(self.decoding.len() - 1, 1, at, output);
        }
    }

    fn retire(&mut self, sequence: &Sequence, at: SimTime, output: &mut StepOutput) {
        self.let_go(sequence);
        output.finished.push(Finished {
            request: sequence.request.id,
            at,
            prompt_tokens: sequence.request.prompt_tokens,
            output_tokens: sequence.request.output_tokens,
            cached_tokens: sequence.cached_tokens,
            queued_ms: sequence.queued_ms,
        });
    }

    fn let_go(&mut self, sequence: &Sequence) {
        self.cache.let_go(&sequence.path[..sequence.pinned]);
        self.reserved -= sequence.reserved;
    }

    /// Moves waiting requests into the batch while there are slots and blocks.
    fn admit(&mut self, now: SimTime) {
        let block_tokens = self.calibration.block_tokens;
        while self.running_count() < self.calibration.max_batch {
            let Some(sequence) = self.waiting.front() else { return };
            let tokens = sequence.request.prompt_tokens + sequence.generated;
            let full = tokens / block_tokens;
            let path = &sequence.path[..full.min(sequence.path.len())];
            let last = if self.calibration.reserve_output {
                sequence.request.prompt_tokens + sequence.request.output_tokens
            } else {
                tokens + 1
            };
            let reserve = last.div_ceil(block_tokens).saturating_sub(path.len()).max(1);
            let needed = self.cache.unpinned(path) + reserve;
            if self.cache.pinned() + self.reserved + needed > self.cache.capacity()
                && self.running_count() > 0
            {
                return;
            }
            let ready = self.cache.ready_prefix(path);
            path.iter().for_each(|hash| self.cache.pin(*hash));
            let pinned = path.len();
            let Some(mut sequence) = self.waiting.pop_front() else { return };
            // The block with the last token is computed in any case: something has to produce the next one.
            sequence.computed = ready.min((tokens - 1) / block_tokens) * block_tokens;
            (sequence.pinned, sequence.announced, sequence.reserved) = (pinned, ready, reserve);
            if sequence.generated == 0 {
                sequence.cached_tokens = sequence.computed;
                sequence.queued_ms = now.ms_since(sequence.submitted);
            }
            self.reserved += reserve;
            let keep = self.cache.capacity().saturating_sub(self.reserved);
            self.cache.evict_to(keep, &mut self.evicted);
            self.prefilling.push(sequence);
        }
    }

    /// Fills a step with every decoding sequence and as much prefill as fits, first come first served.
    fn start(&mut self, now: SimTime) {
        if self.running_count() == 0 {
            return;
        }
        let batch = self.decoding.len();
        let mut room = self.calibration.max_num_tokens.saturating_sub(batch);
        let decoding = Work { batch, context: self.context, ..Work::default() };
        let mut work = decoding;
        for sequence in &mut self.prefilling {
            let chunk = sequence.to_prefill().min(room);
            work.prefill(sequence.computed, chunk);
            sequence.computed += chunk;
            room -= chunk;
        }
        let decode_ms = self.calibration.step_ms(&decoding);
        let ms = self.calibration.step_ms(&work);
        self.running = Some(Running { ends: now.after_ms(ms), decode_ms });
    }

    fn announce_evicted(&mut self, output: &mut StepOutput) {
        if !self.evicted.is_empty() {
            let ids = std::mem::take(&mut self.evicted);
            output.events.push(KvEvent::Removed { tier: Tier::Device, ids });
        }
    }
}

/// Says that the sequence's blocks up to `full` are computed, those that nobody had computed before.
fn announce(cache: &mut BlockCache, sequence: &mut Sequence, full: usize, output: &mut StepOutput) {
    let id = |hash: SequenceHash| EngineBlockId::from(hash.0);
    let mut at = sequence.announced;
    sequence.announced = full.max(at);
    while at < full {
        let new = (at..full).take_while(|at| cache.set_ready(sequence.path[*at])).count();
        if new > 0 {
            let block =
                |at: usize| StoredBlock { id: id(sequence.path[at]), hash: sequence.request.blocks[at] };
            let parent = at.checked_sub(1).map(|at| id(sequence.path[at]));
            let blocks = (at..at + new).map(block).collect();
            output.events.push(KvEvent::Stored { tier: Tier::Device, parent, blocks });
            output.origins.push(Origin { request: sequence.request.id, first_block: at });
        }
        // The block that stopped the run, if any, was announced by another sequence.
        at += new + 1;
    }
}

#[cfg(test)]
mod tests;
