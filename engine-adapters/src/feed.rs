//! The event's path: whatever a source hears ends here, in the index, with a note of how it went.
//!
//! A [`Sink`] stands for one worker's rank. It is told batches in order; when its source has lost track it
//! forgets the worker, and until that is repaired the worker is routable with nothing known of its cache.

mod health;

use std::sync::Arc;
use std::time::Duration;

use kvlane_indexer::{Applied, BlockSize, EngineBlockId, EventError, Index, KvEvent, Tick, Tier, WorkerId};
use tokio::time::Instant;

pub use self::health::{FeedHealth, FeedReport, FeedState, LAG_BOUNDS_MS};
use crate::bridge::Mirror;
use crate::copies::Copies;
use crate::translate::{Translator, WrongBlockSize};
use crate::vllm::decode::Batch;

/// Time as feeds need it: coarse ticks for the index, and wall time to see how late events are.
#[derive(Clone, Copy, Debug)]
pub struct FeedClock {
    started: Instant,
    since_1970: Duration,
}

impl FeedClock {
    /// From now on, `since_1970` being the wall time now.
    pub fn starting(since_1970: Duration) -> Self {
        Self { started: Instant::now(), since_1970 }
    }

    /// Seconds since the start.
    pub fn tick(&self) -> Tick {
        Tick(self.started.elapsed().as_secs() as u32)
    }

    /// Seconds since 1970.
    pub fn seconds(&self) -> f64 {
        (self.since_1970 + self.started.elapsed()).as_secs_f64()
    }
}

/// Whether an engine announces every physical copy of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyRule {
    /// As vLLM does: stored and removed once per copy.
    Counted,
    /// A block is there or not.
    Once,
}

/// What events change: the index, or a bridge's copy of what its worker holds.
pub trait Target: Send + Sync + std::fmt::Debug {
    /// Forgets everything. The worker itself stays known.
    fn forget(&mut self);

    /// Takes an event in, and tells `held` the names of stored blocks that were held already.
    fn apply(
        &mut self,
        event: &KvEvent,
        tick: Tick,
        held: &mut dyn FnMut(EngineBlockId),
    ) -> Result<Applied, EventError>;
}

/// One worker's part of the index.
#[derive(Clone, Debug)]
pub struct IndexTarget {
    index: Arc<Index>,
    worker: WorkerId,
}

impl IndexTarget {
    pub fn new(index: Arc<Index>, worker: WorkerId) -> Self {
        // Full is full: then it is simply not known until there is room.
        let _ = index.register(worker);
        Self { index, worker }
    }
}

impl Target for IndexTarget {
    fn forget(&mut self) {
        self.index.forget(self.worker);
        let _ = self.index.register(self.worker);
    }

    fn apply(
        &mut self,
        event: &KvEvent,
        tick: Tick,
        held: &mut dyn FnMut(EngineBlockId),
    ) -> Result<Applied, EventError> {
        self.index.apply_noting(self.worker, event, tick, held)
    }
}

/// One worker's rank, as its events change it.
#[derive(Debug)]
pub struct Sink {
    target: Box<dyn Target>,
    clock: FeedClock,
    translator: Translator,
    copies: Option<Copies>,
    /// While the past is gone through again: what it comes to, so that nobody sees states that are over.
    rebuilding: Option<Mirror>,
    health: Arc<FeedHealth>,
}

impl Sink {
    pub fn new(
        target: Box<dyn Target>,
        block_size: BlockSize,
        copies: CopyRule,
        clock: FeedClock,
        health: Arc<FeedHealth>,
    ) -> Self {
        let copies = (copies == CopyRule::Counted).then(Copies::default);
        let translator = Translator::new(block_size);
        Self { target, clock, translator, copies, rebuilding: None, health }
    }

    pub fn health(&self) -> &Arc<FeedHealth> {
        &self.health
    }

    /// Forgets everything known of the worker. It stays known itself, so that it can be routed to.
    pub fn forget(&mut self) {
        match &mut self.rebuilding {
            Some(mirror) => mirror.clear(),
            None => self.target.forget(),
        }
        self.translator.forget();
        if let Some(copies) = &mut self.copies {
            copies.clear();
        }
    }

    /// Forgets everything, and takes what follows in aside until [`rebuilt`](Self::rebuilt).
    pub fn rebuild(&mut self) {
        self.rebuilding = None;
        self.forget();
        self.rebuilding = Some(Mirror::default());
    }

    /// What the past came to is how things stand now.
    pub fn rebuilt(&mut self) {
        let Some(mirror) = self.rebuilding.take() else { return };
        for event in mirror.events() {
            self.apply_event(event);
        }
    }

    /// Notes how late something is that was made at `seconds` since 1970.
    pub fn heard(&self, seconds: f64, unknown_events: u64) {
        self.health.batch((self.clock.seconds() - seconds) * 1e3, unknown_events);
    }

    /// Takes a batch in.
    pub fn apply(&mut self, batch: &Batch) -> Result<(), WrongBlockSize> {
        // What is gone through again is old, and says nothing of how late events come.
        if self.rebuilding.is_none() {
            self.heard(batch.seconds, batch.unknown as u64);
        }
        for event in &batch.events {
            if let Some(event) = self.translator.translate(event)? {
                self.apply_event(event);
            }
        }
        self.health.left_out(self.translator.left_out);
        Ok(())
    }

    /// Takes one event in that is in the index's words already.
    pub fn apply_event(&mut self, mut event: KvEvent) {
        let Self { target, copies, .. } = self;
        if let (Some(copies), KvEvent::Removed { tier, ids }) = (copies.as_mut(), &mut event) {
            copies.removed(*tier, ids);
        }
        let tick = self.clock.tick();
        // Copies come one by one. Several blocks announced again are a full report, which stores nothing anew.
        let counted = matches!(&event, KvEvent::Stored { blocks, .. } if blocks.len() == 1);
        let mut held = |tier: Tier, id: EngineBlockId| {
            if let Some(copies) = copies.as_mut().filter(|_| counted) {
                copies.stored_again(tier, id);
            }
        };
        let tier = if let KvEvent::Stored { tier, .. } = &event { *tier } else { Tier::Device };
        let applied = match &mut self.rebuilding {
            Some(mirror) => event.check().map(|()| mirror.apply(&event, &mut |id| held(tier, id))),
            None => target.apply(&event, tick, &mut |id| held(tier, id)),
        };
        if let (Some(copies), KvEvent::Cleared { .. }) = (copies, &event) {
            copies.clear();
        }
        match applied {
            Ok(_) if self.rebuilding.is_some() => {}
            Ok(applied) => self.health.applied(&event, applied),
            Err(error) => self.health.refused(&error.to_string()),
        }
    }
}
