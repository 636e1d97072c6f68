//! Load one worker carries for requests placed there and not yet finished.
//!
//! Prefill load ends at the first token, block load with the request. Blocks are counted twice over: distinct ones, a
//! prompt that several requests share once, as the reference's cost has it; and all of them, every request's own prompt
//! and what it has been answered so far.
//!
//! What is to be computed before first tokens is computed one after the other, at a speed that is learnt: it dwindles
//! with time, and what comes is added to what is left. How long requests stay is learnt too: from that follows how often one
//! ends, and how long one waits for a slot where all are taken.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use kvlane_indexer::SequenceHash;

use super::active_paths::ActivePaths;

/// Stands for one request's prefill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

#[derive(Clone, Debug, Default)]
pub struct ActiveLoad {
    requests: usize,
    paths: ActivePaths,
    total_blocks: usize,
    /// Prompts without a first token yet, as they came: tokens to compute.
    pending: VecDeque<Pending>,
    pending_tokens: usize,
    /// What was left to compute at a time, those that gave up meanwhile included.
    left: f64,
    at: Duration,
    /// The only streamed prompt there, and since when it has been; none when others came.
    alone: Option<(Ticket, Duration)>,
    tickets: u64,
    speed: PrefillSpeed,
    stays: Stays,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    ticket: Ticket,
    tokens: usize,
    /// Its first token will be seen; of the others only their end is.
    streamed: bool,
}

/// How fast a worker computes prompts, learnt from those that were long enough to tell.
#[derive(Clone, Copy, Debug, Default)]
struct PrefillSpeed {
    tokens: f64,
    seconds: f64,
}

/// Shorter ones take as long as a step does, whatever they have.
const TELLING_TOKENS: usize = 512;
/// How much each prompt forgets of those before.
const KEPT: f64 = 0.9;

impl PrefillSpeed {
    fn learn(&mut self, tokens: usize, took: Duration) {
        if tokens >= TELLING_TOKENS {
            self.tokens = KEPT * self.tokens + tokens as f64;
            self.seconds = KEPT * self.seconds + took.as_secs_f64();
        }
    }

    /// Tokens computed in so many seconds; none while nothing is known.
    fn computes(self, seconds: f64) -> f64 {
        if self.seconds > 0.0 { self.tokens / self.seconds * seconds } else { 0.0 }
    }
}

/// How long requests stay: what all of them stayed together, by how many ended. How often one ends follows from it and from
/// how many there are, and would have to be learnt anew whenever these become more or fewer.
#[derive(Clone, Copy, Debug, Default)]
struct Stays {
    ended: f64,
    seconds: f64,
    /// What all have stayed since that was last learnt.
    fresh_s: f64,
    /// When one came last, and how many have ended since; none while nobody is there.
    since: Option<(Duration, usize)>,
}

/// How much of what was learnt of stays is kept, one having come.
const KEPT_STAYS: f64 = 0.97;

impl Stays {
    /// One comes to so many.
    fn came(&mut self, requests: usize, now: Duration) {
        if let Some((since, ended)) = self.since {
            // Those that ended were there half of the time.
            let there = requests as f64 + ended as f64 / 2.0;
            self.fresh_s += there * now.saturating_sub(since).as_secs_f64();
            if ended > 0 {
                self.ended = KEPT_STAYS * self.ended + ended as f64;
                self.seconds = KEPT_STAYS * self.seconds + std::mem::take(&mut self.fresh_s);
            }
        }
        self.since = Some((now, 0));
    }

    /// One is over. When the last is, nobody knows when the others were.
    fn ended(&mut self, idle: bool) {
        if idle {
            (self.since, self.fresh_s) = (None, 0.0);
        }
        self.since = self.since.map(|(since, ended)| (since, ended + 1));
    }
}

impl ActiveLoad {
    /// Prompt tokens that could be computed here while a request stays. None until both are known.
    pub fn tokens_of_a_stay(&self) -> Option<f64> {
        let Stays { ended, seconds, .. } = self.stays;
        let computed = (ended > 0.0).then(|| self.speed.computes(seconds / ended));
        computed.filter(|tokens| *tokens > 0.0)
    }

    pub fn requests(&self) -> usize {
        self.requests
    }

    /// Prompt tokens placed here whose first answer token has not come yet, cached ones not counted.
    pub fn prefill_tokens(&self) -> usize {
        self.pending_tokens
    }

    /// What is left of them by now.
    pub fn prefill_left(&self, now: Duration) -> usize {
        let left =
            (self.left - self.speed.computes(now.saturating_sub(self.at).as_secs_f64())).max(0.0) as usize;
        // No more than those have who wait for it.
        left.min(self.pending_tokens)
    }

    /// Counts what was computed until now.
    fn settle(&mut self, now: Duration) {
        self.left = self.prefill_left(now) as f64;
        self.at = self.at.max(now);
    }

    /// Distinct prompt blocks in use.
    pub fn blocks(&self) -> usize {
        self.paths.blocks()
    }

    /// Every request's own blocks, shared or not, answers included.
    pub fn total_blocks(&self) -> usize {
        self.total_blocks
    }

    /// Distinct prompt blocks in use if a request with this prompt came too.
    pub fn blocks_with(&self, prompt: &[SequenceHash]) -> usize {
        self.paths.blocks() + prompt.len() - self.paths.used(prompt)
    }

    /// A request was placed here.
    pub fn add(
        &mut self,
        prompt: &Arc<[SequenceHash]>,
        prefill_tokens: usize,
        streamed: bool,
        now: Duration,
    ) -> Ticket {
        self.stays.came(self.requests, now);
        self.requests += 1;
        self.total_blocks += prompt.len();
        self.paths.add(prompt);
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.settle(now);
        if streamed {
            let others = self.pending.iter().any(|pending| pending.streamed);
            self.alone = (!others).then_some((ticket, now));
        }
        self.left += prefill_tokens as f64;
        self.pending.push_back(Pending { ticket, tokens: prefill_tokens, streamed });
        self.pending_tokens += prefill_tokens;
        ticket
    }

    /// Its first token came: what it had to compute is computed.
    pub fn prefilled(&mut self, ticket: Ticket, now: Duration) {
        let since = self.alone.and_then(|(alone, since)| (alone == ticket).then_some(since));
        self.settle(now);
        if let Some(tokens) = self.give_up(ticket)
            && let Some(since) = since
        {
            self.speed.learn(tokens, now.saturating_sub(since));
        }
    }

    /// It will have none, or none that tells. Tokens that were to be computed.
    pub fn give_up(&mut self, ticket: Ticket) -> Option<usize> {
        let at = self.pending.iter().position(|pending| pending.ticket == ticket)?;
        let tokens = self.pending.remove(at)?.tokens;
        self.pending_tokens -= tokens;
        Some(tokens)
    }

    /// Its answer filled more blocks.
    pub fn grew(&mut self, blocks: usize) {
        self.total_blocks += blocks;
    }

    /// It is over, its answer having filled `answer_blocks`.
    pub fn remove(&mut self, prompt: &[SequenceHash], answer_blocks: usize) {
        self.requests = self.requests.saturating_sub(1);
        self.stays.ended(self.requests == 0);
        self.total_blocks = self.total_blocks.saturating_sub(prompt.len() + answer_blocks);
        self.paths.remove(prompt);
        if self.requests == 0 {
            self.paths.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_blocks_count_once_until_the_last_request_is_over() {
        let path = |own: u64| Arc::from([1, 2, own].map(SequenceHash));
        let mut load = ActiveLoad::default();
        let ticket = load.add(&path(10), 96, true, Duration::ZERO);
        load.add(&path(20), 32, true, Duration::ZERO);
        assert_eq!((load.requests(), load.prefill_tokens(), load.blocks_with(&path(30))), (2, 128, 5));
        load.grew(2);
        assert_eq!((load.blocks(), load.total_blocks()), (4, 8));
        load.prefilled(ticket, Duration::ZERO);
        load.remove(&path(10), 2);
        assert_eq!((load.requests(), load.prefill_tokens(), load.blocks_with(&[])), (1, 32, 3));
        load.remove(&path(20), 0);
        assert_eq!((load.blocks_with(&[]), load.total_blocks()), (0, 0));
    }

    #[test]
    fn how_long_requests_stay_is_learnt_while_there_are_some() {
        let at = Duration::from_secs;
        let none: Arc<[SequenceHash]> = [].into();
        let mut load = ActiveLoad::default();
        let first = load.add(&none, 4000, true, at(0));
        load.prefilled(first, Duration::from_millis(500));
        load.add(&none, 0, true, at(1));
        assert_eq!(load.tokens_of_a_stay(), None);
        load.remove(&none, 0);
        load.add(&none, 0, true, at(3));
        let stays = |seconds: f64| Some(8000.0 * seconds);
        assert_eq!(
            load.tokens_of_a_stay(),
            stays(4.0),
            "a second, and two with half of one more, 8000 tokens in each"
        );
        load.add(&none, 0, true, at(10));
        assert_eq!(load.tokens_of_a_stay(), stays(4.0), "none ended since");
        load.remove(&none, 0);
        load.remove(&none, 0);
        load.add(&none, 0, true, at(13));
        let all = (KEPT_STAYS * 4.0 + 2.0 * 7.0 + 2.0 * 3.0) / (KEPT_STAYS + 2.0);
        assert!((load.tokens_of_a_stay().unwrap() - 8000.0 * all).abs() < 1.0, "{:?}", load.stays);
        // Nobody there: neither the time until somebody comes says anything, nor that of those who were.
        let before = load.tokens_of_a_stay();
        load.add(&none, 0, true, at(20));
        (0..3).for_each(|_| load.remove(&none, 0));
        load.add(&none, 0, true, at(1000));
        assert_eq!((load.requests(), load.tokens_of_a_stay()), (1, before));
        load.add(&none, 0, true, at(1002));
        load.remove(&none, 0);
        load.add(&none, 0, true, at(1003));
        let then =
            (KEPT_STAYS * (KEPT_STAYS + 2.0) * all + 2.0 + 1.5) / (KEPT_STAYS * (KEPT_STAYS + 2.0) + 1.0);
        assert!((load.tokens_of_a_stay().unwrap() - 8000.0 * then).abs() < 1.0, "{:?}", load.stays);
    }

    /// Ten that stay ten seconds end once a second; that thirty end three times a second is known before any of them has.
    #[test]
    fn more_requests_than_before_stay_as_long() {
        let none: Arc<[SequenceHash]> = [].into();
        let mut load =
            ActiveLoad { speed: PrefillSpeed { tokens: 1.0, seconds: 1.0 }, ..ActiveLoad::default() };
        for _ in 0..10 {
            load.add(&none, 0, true, Duration::ZERO);
        }
        for second in 1..200 {
            load.remove(&none, 0);
            load.add(&none, 0, true, Duration::from_secs(second));
        }
        let stay = load.tokens_of_a_stay().unwrap();
        assert!((stay - 10.0).abs() < 1.0, "{stay}");
        for _ in 0..20 {
            load.add(&none, 0, true, Duration::from_secs(200));
        }
        for second in 201..205 {
            (0..3).for_each(|_| load.remove(&none, 0));
            for _ in 0..3 {
                load.add(&none, 0, true, Duration::from_secs(second));
            }
            let now = load.tokens_of_a_stay().unwrap();
            assert!((now - stay).abs() < 0.5, "{now} and before {stay}");
        }
    }

    #[test]
    fn what_is_to_be_computed_dwindles_at_the_speed_learnt() {
        let at = Duration::from_millis;
        let none: Arc<[SequenceHash]> = [].into();
        let mut load = ActiveLoad::default();
        let first = load.add(&none, 4000, true, at(0));
        assert_eq!(load.prefill_left(at(400)), 4000, "nothing is known of its speed");
        load.prefilled(first, at(500));
        assert_eq!(load.prefill_left(at(500)), 0);
        let second = load.add(&none, 4000, true, at(1000));
        let third = load.add(&none, 2000, true, at(1125));
        assert_eq!(load.prefill_left(at(1250)), 4000);
        assert_eq!(load.prefill_left(at(9000)), 0);
        assert_eq!(load.prefill_tokens(), 6000);
        // No more is left than is waited for, and nothing is learnt where two were computed together.
        let before = load.speed.computes(1.0);
        load.prefilled(second, at(1250));
        assert_eq!((load.prefill_left(at(1250)), load.speed.computes(1.0)), (2000, before));
        assert_eq!((load.give_up(third), load.give_up(third), load.prefill_tokens()), (Some(2000), None, 0));
        // What comes to one that is overdue is still to be computed.
        let stuck = load.add(&none, 4000, true, at(2000));
        load.add(&none, 3000, true, at(60_000));
        assert_eq!(load.prefill_left(at(60_000)), 3000);
        load.give_up(stuck);
        assert_eq!(load.prefill_left(at(60_000)), 3000);
        // One that leaves in the middle leaves the others what they have.
        let mut load = ActiveLoad { speed: load.speed, ..ActiveLoad::default() };
        let first = load.add(&none, 4000, true, at(0));
        load.add(&none, 4000, true, at(0));
        load.give_up(first);
        assert_eq!(load.prefill_left(at(500)), 4000);
        // An answer that is not streamed hides nothing of the others' speed.
        let mut load = ActiveLoad::default();
        load.add(&none, 700, false, at(0));
        let streamed = load.add(&none, 4000, true, at(0));
        load.prefilled(streamed, at(500));
        assert_eq!(load.speed.computes(1.0), 8000.0);
    }
}
