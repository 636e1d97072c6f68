//! One engine's numbered batches on their way into a sink: what each number means, when the past has to be asked for,
//! and what is made of the answer. No socket and no clock, so that whoever has neither can drive it too.
//!
//! Told of batches by [`hear`](Track::hear). When that says [`Next::Repair`], the past is asked for from the number that
//! [`repair`](Track::repair) gives, every answer is [`replayed`](Track::replayed), and how it ended is told to
//! [`replay_ended`](Track::replay_ended), which may have something asked again. The batch that showed the gap waits
//! meanwhile and is taken in last.

use super::decode::Batch;
use crate::cursor::{EventCursor, Verdict};
use crate::feed::{FeedState, Sink};
use crate::translate::WrongBlockSize;

/// What is to be done after a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    GoOn,
    /// Track was lost: the past is to be asked for.
    Repair,
}

/// How one asking for the past ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayEnd {
    /// With the engine's end marker.
    Ended,
    /// Without it, or in between something was missing.
    Broken,
    /// Nobody answers there.
    Silent,
}

/// The past being gone through.
#[derive(Clone, Copy, Debug, Default)]
struct Replay {
    /// What was asked for this time, and the number of the first batch that came.
    start: u64,
    began_at: Option<u64>,
    /// Everything came from the very first batch on.
    whole: bool,
    /// The last time nothing came that was of use. Then it may begin later; what is known by then proves nothing.
    stuck: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Track {
    sink: Sink,
    cursor: EventCursor,
    /// The batch that could not be placed, until the past is there.
    waiting: Option<(u64, Batch)>,
    replay: Replay,
    /// The past was asked for and nobody told it.
    in_vain: bool,
}

impl Track {
    pub fn new(sink: Sink) -> Self {
        Self {
            sink,
            cursor: EventCursor::default(),
            waiting: None,
            replay: Replay::default(),
            in_vain: false,
        }
    }

    pub fn sink(&self) -> &Sink {
        &self.sink
    }

    /// The number that is expected next.
    pub fn expected(&self) -> u64 {
        self.cursor.expected()
    }

    /// Whether it has died or only its connection, what the engine holds is not known any more.
    pub fn lost(&mut self, state: FeedState) {
        self.sink.forget();
        self.cursor.reset();
        self.waiting = None;
        self.sink.health().set_state(state);
    }

    /// One batch, none when it could not be read.
    pub fn hear(&mut self, number: u64, batch: Option<Batch>) -> Result<Next, WrongBlockSize> {
        let Some(batch) = batch else {
            // Whatever it took away is not known, and a replay would bring the same bytes.
            self.sink.forget();
            self.cursor.passed(number, 0.0);
            self.sink.health().set_state(FeedState::Partial);
            return Ok(Next::GoOn);
        };
        let verdict = self.cursor.judge(number, batch.seconds);
        let health = self.sink.health();
        match verdict {
            Verdict::Next => {
                self.sink.apply(&batch)?;
                self.cursor.passed(number, batch.seconds);
                return Ok(Next::GoOn);
            }
            Verdict::Duplicate => {
                health.duplicate();
                return Ok(Next::GoOn);
            }
            Verdict::Restart => health.restart(),
            Verdict::Gap { .. } => health.gap(),
        }
        tracing::warn!(worker = health.worker.instance, number, ?verdict, "KV events lost");
        self.waiting = Some((number, batch));
        Ok(Next::Repair)
    }

    /// Forgets the worker and gets ready for its past; says from which number on.
    pub fn repair(&mut self) -> u64 {
        self.sink.health().set_state(FeedState::Repairing);
        self.cursor.reset();
        self.sink.rebuild();
        self.replay = Replay { whole: true, ..Replay::default() };
        0
    }

    /// A batch of the past, none when it could not be read. False when this replay leads nowhere any more.
    pub fn replayed(&mut self, number: u64, batch: Option<Batch>) -> Result<bool, WrongBlockSize> {
        if number < self.cursor.expected() {
            return Ok(true);
        }
        let Some(batch) = batch else {
            // What it took away is not known, so what came before proves nothing.
            self.sink.forget();
            self.cursor.passed(number, 0.0);
            self.replay.began_at.get_or_insert(u64::MAX);
            self.replay.whole = false;
            return Ok(true);
        };
        let Replay { start, began_at, stuck, .. } = &mut self.replay;
        if number > self.cursor.expected() {
            if began_at.is_some() || !(*stuck || *start == 0) {
                return Ok(false);
            }
            self.sink.forget();
        }
        began_at.get_or_insert(number);
        self.sink.apply(&batch)?;
        self.cursor.passed(number, batch.seconds);
        Ok(true)
    }

    /// That was all. A replay socket drops what its listener is too slow for, so whatever is missing in the middle is
    /// asked for again, as long as that leads anywhere: from which number on, or none when the repair is over.
    pub fn replay_ended(&mut self, end: ReplayEnd) -> Result<Option<u64>, WrongBlockSize> {
        let Replay { start, began_at, whole, stuck } = self.replay;
        // Not even a first reply: an engine that does not replay.
        let silent =
            end == ReplayEnd::Silent || (end == ReplayEnd::Broken && began_at.is_none() && start == 0);
        if silent {
            return self.repaired(Some(None)).map(|()| None);
        }
        if end == ReplayEnd::Ended {
            return self.repaired(Some(Some(whole && began_at.is_none_or(|at| at == start)))).map(|()| None);
        }
        let expected = self.cursor.expected();
        let moved = expected > start;
        if stuck && !moved {
            self.sink.health().failed("the replay breaks off");
            return self.repaired(Some(None)).map(|()| None);
        }
        let whole = whole && began_at.is_none_or(|at| at == start);
        self.replay = Replay { start: expected, began_at: None, whole, stuck: !moved };
        Ok(Some(expected))
    }

    /// There is nobody to be asked for the past.
    pub fn unrepaired(&mut self) -> Result<(), WrongBlockSize> {
        self.repaired(None)
    }

    /// Whether the past was asked for in vain: it may be had later, from an engine that was too busy.
    pub fn asks_again(&self) -> bool {
        self.in_vain && self.sink.health().state() == FeedState::Partial
    }

    /// Whether anybody was asked; whether an answer came, and was all there ever was.
    fn repaired(&mut self, asked: Option<Option<bool>>) -> Result<(), WrongBlockSize> {
        self.in_vain = asked == Some(None);
        if let Some(answer) = asked {
            self.sink.health().replayed(answer.is_some());
        }
        let whole = asked.flatten();
        if whole.is_none() {
            // A part of the past proves nothing: what came after it may have taken it away.
            self.sink.forget();
            self.cursor.reset();
        }
        self.sink.rebuilt();
        self.sink.health().set_state(match whole {
            Some(true) => FeedState::Live,
            // The first batches are gone from the buffer, or the engine did not answer.
            Some(false) | None => FeedState::Partial,
        });
        let Some((number, batch)) = self.waiting.take() else { return Ok(()) };
        match self.cursor.judge(number, batch.seconds) {
            Verdict::Next if number == 0 => self.sink.health().set_state(FeedState::Live),
            Verdict::Next => {}
            Verdict::Duplicate => return Ok(()),
            // What the replay did not have, nobody has.
            Verdict::Gap { .. } | Verdict::Restart => {
                self.sink.forget();
                self.sink.health().set_state(FeedState::Partial);
            }
        }
        self.sink.apply(&batch)?;
        self.cursor.passed(number, batch.seconds);
        Ok(())
    }
}
