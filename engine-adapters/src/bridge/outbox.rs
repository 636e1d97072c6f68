//! Events on their way out, and the mirror they have gone through: one lock for both, so that a snapshot and the
//! number of the next message belong together.

use std::collections::VecDeque;
use std::sync::Arc;

use kvlane_indexer::{Applied, EngineBlockId, EventError, KvEvent, Tick};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::mirror::Mirror;
use crate::feed::Target;

/// Events in one message.
const MESSAGE_EVENTS: usize = 128;
/// What an event takes besides its blocks, in blocks.
const EVENT_BLOCKS: usize = 3;

#[derive(Debug, Default)]
struct State {
    mirror: Mirror,
    waiting: VecDeque<KvEvent>,
    /// Something was dropped since the last message.
    dropped: bool,
    drops: u64,
    next_sequence: u64,
    next_event_id: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Outbox {
    state: Mutex<State>,
    /// Events that may wait.
    bound: usize,
    ready: Notify,
}

/// One message's worth.
#[derive(Debug)]
pub struct Message {
    pub sequence: u64,
    /// Number of the first event.
    pub first_event_id: u64,
    pub events: Vec<KvEvent>,
}

impl Outbox {
    pub fn new(bound: usize) -> Self {
        Self {
            state: Mutex::new(State { next_event_id: 1, ..State::default() }),
            bound,
            ready: Notify::new(),
        }
    }

    fn push(&self, state: &mut State, event: KvEvent) {
        if state.waiting.len() >= self.bound {
            state.waiting.clear();
            state.dropped = true;
            state.drops += 1;
        }
        state.waiting.push_back(event);
        self.ready.notify_one();
    }

    /// The next message, once there is something to say.
    pub async fn next(&self, max_blocks: usize) -> Message {
        loop {
            if let Some(message) = self.take(max_blocks) {
                return message;
            }
            self.ready.notified().await;
        }
    }

    /// The next message if there is something to say, of at most so many blocks.
    pub fn take(&self, max_blocks: usize) -> Option<Message> {
        let mut state = self.state.lock();
        if state.waiting.is_empty() {
            return None;
        }
        // A number left out says that something is missing.
        if std::mem::take(&mut state.dropped) {
            state.next_sequence += 1;
            state.next_event_id += 1;
        }
        let mut events = Vec::new();
        let mut room = max_blocks.max(1);
        while let Some(event) = state.waiting.front_mut() {
            if events.len() >= MESSAGE_EVENTS || room == 0 {
                break;
            }
            // An event too long for one message goes in parts.
            let (first, blocks) = first_part(event, room);
            room = room.saturating_sub(blocks + EVENT_BLOCKS);
            match first {
                Some(first) => events.push(first),
                None => events.extend(state.waiting.pop_front()),
            }
        }
        let (sequence, first_event_id) = (state.next_sequence, state.next_event_id);
        state.next_sequence += 1;
        state.next_event_id += events.len() as u64;
        Some(Message { sequence, first_event_id, events })
    }

    /// Whether nothing waits.
    pub fn is_drained(&self) -> bool {
        self.state.lock().waiting.is_empty()
    }

    /// Number of the next message.
    pub fn next_sequence(&self) -> u64 {
        let state = self.state.lock();
        state.next_sequence + u64::from(state.dropped)
    }

    /// Everything held, and the number of the first message that is not in it. What still waits is in it already and
    /// comes again, which does no harm.
    pub fn snapshot(&self) -> (u64, Vec<KvEvent>) {
        let state = self.state.lock();
        (state.next_sequence + u64::from(state.dropped), state.mirror.events())
    }

    /// Blocks held.
    pub fn blocks(&self) -> usize {
        self.state.lock().mirror.len()
    }

    /// How often everything that waited was dropped.
    pub fn drops(&self) -> u64 {
        self.state.lock().drops
    }
}

/// Takes the first `most` blocks out of an event and leaves the rest in it, and says how many they are; nothing is
/// taken out of an event that is short enough.
fn first_part(event: &mut KvEvent, most: usize) -> (Option<KvEvent>, usize) {
    match event {
        KvEvent::Stored { tier, parent, blocks } if blocks.len() > most => {
            let rest = blocks.split_off(most);
            let first = std::mem::replace(blocks, rest);
            let before = std::mem::replace(parent, first.last().map(|block| block.id));
            (Some(KvEvent::Stored { tier: *tier, parent: before, blocks: first }), most)
        }
        KvEvent::Stored { blocks, .. } => (None, blocks.len()),
        KvEvent::Removed { tier, ids } if ids.len() > most => {
            let rest = ids.split_off(most);
            (Some(KvEvent::Removed { tier: *tier, ids: std::mem::replace(ids, rest) }), most)
        }
        KvEvent::Removed { ids, .. } => (None, ids.len()),
        KvEvent::Cleared { .. } => (None, 0),
    }
}

/// Events cut so that each has at most `most` blocks, in messages of at most as many.
pub(super) fn in_messages(events: Vec<KvEvent>, most: usize) -> Vec<Vec<KvEvent>> {
    let mut messages = vec![Vec::new()];
    let mut room = most;
    for mut event in events {
        loop {
            let (part, blocks) = first_part(&mut event, room.max(1));
            let last = messages.len() - 1;
            room = room.saturating_sub(blocks + EVENT_BLOCKS);
            match part {
                Some(part) => messages[last].push(part),
                None => {
                    messages[last].push(event);
                    break;
                }
            }
            messages.push(Vec::new());
            room = most;
        }
        if room == 0 {
            messages.push(Vec::new());
            room = most;
        }
    }
    messages
}

/// Puts what an engine says into an outbox.
#[derive(Clone, Debug)]
pub struct OutboxTarget(pub Arc<Outbox>);

impl Target for OutboxTarget {
    fn forget(&mut self) {
        let mut state = self.0.state.lock();
        if !state.mirror.is_empty() {
            state.mirror.clear();
            self.0.push(&mut state, KvEvent::Cleared { tier: None });
        }
    }

    fn apply(
        &mut self,
        event: &KvEvent,
        _: Tick,
        held: &mut dyn FnMut(EngineBlockId),
    ) -> Result<Applied, EventError> {
        event.check()?;
        let mut state = self.0.state.lock();
        let applied = state.mirror.apply(event, held);
        // Said on as far as it changed anything; blocks held already are harmless to repeat.
        if applied.stored > 0 || applied.removed > 0 {
            self.0.push(&mut state, event.clone());
        }
        Ok(applied)
    }
}

#[cfg(test)]
mod tests {
    use kvlane_indexer::{BlockHash, StoredBlock, Tier};

    use super::*;

    fn stored(ids: std::ops::Range<u64>) -> KvEvent {
        let blocks = ids.map(|id| StoredBlock { id: id.into(), hash: BlockHash(id) }).collect();
        KvEvent::Stored { tier: Tier::Device, parent: None, blocks }
    }

    #[test]
    fn an_overflow_leaves_a_number_out_and_a_snapshot_has_it_all() {
        let outbox = Arc::new(Outbox::new(3));
        let mut target = OutboxTarget(outbox.clone());
        let mut say = |event: &KvEvent| target.apply(event, Tick(0), &mut |_| ()).unwrap();
        let _ = say(&stored(0..1));
        let first = outbox.take(100).unwrap();
        assert_eq!((first.sequence, first.first_event_id, first.events.len()), (0, 1, 1));
        for id in 10..15 {
            let _ = say(&stored(id..id + 1));
        }
        assert_eq!((outbox.drops(), outbox.next_sequence()), (1, 2));
        let (next, events) = outbox.snapshot();
        assert_eq!((next, events.len(), outbox.blocks()), (2, 6, 6));
        let second = outbox.take(100).unwrap();
        assert_eq!((second.sequence, second.first_event_id, second.events.len()), (2, 3, 2));
        assert!(outbox.take(100).is_none());
    }

    #[test]
    fn messages_stay_small_and_nothing_changed_is_not_said() {
        let outbox = Arc::new(Outbox::new(10_000));
        let mut target = OutboxTarget(outbox.clone());
        let mut say = |event: &KvEvent| target.apply(event, Tick(0), &mut |_| ()).unwrap();
        for at in 0..300 {
            let _ = say(&stored(at * 100..at * 100 + 100));
        }
        assert_eq!(say(&stored(0..100)).stored, 0);
        let blocks = |event: &KvEvent| match event {
            KvEvent::Stored { blocks, .. } => blocks.len(),
            other => panic!("{other:?}"),
        };
        let messages: Vec<Message> = std::iter::from_fn(|| outbox.take(8150)).collect();
        let sizes: Vec<usize> =
            messages.iter().map(|message| message.events.iter().map(blocks).sum()).collect();
        assert_eq!(sizes.iter().sum::<usize>(), 30_000);
        assert!(
            sizes.iter().zip(&messages).all(|(blocks, message)| blocks + 3 * message.events.len() <= 8153),
            "{sizes:?}"
        );
        // The event that was cut goes on where its first part ended.
        let (first, second) = (messages[0].events.last().unwrap(), &messages[1].events[0]);
        let (KvEvent::Stored { blocks: head, .. }, KvEvent::Stored { parent, .. }) = (first, second) else {
            panic!()
        };
        assert_eq!(*parent, head.last().map(|block| block.id));
        let parts = in_messages(vec![stored(0..250), stored(300..310)], 100);
        assert_eq!(
            parts.iter().map(|part| part.iter().map(blocks).sum()).collect::<Vec<usize>>(),
            [100, 100, 60]
        );
    }
}
