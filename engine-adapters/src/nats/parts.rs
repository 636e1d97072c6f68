//! A snapshot on its way: it comes in parts, of which none may be missing.

use crate::dynamo::{RouterEvent, decode_events};

/// A snapshot's parts as they come.
#[derive(Debug)]
pub struct Parts {
    taken: usize,
    /// Bytes that may still come.
    room: usize,
    events: Vec<RouterEvent>,
}

/// What a part made of it.
#[derive(Debug)]
pub enum Gathered {
    More,
    Whole(u64, Vec<RouterEvent>),
    /// One is missing, or cannot be read, or there is too much of it.
    Wrong,
}

impl Parts {
    /// Of at most so many bytes together.
    pub fn new(room: usize) -> Self {
        Self { taken: 0, room, events: Vec::new() }
    }

    /// The number after the snapshot, which part this is, of how many, and what is in it.
    pub fn take(&mut self, (next, at, of): (u64, usize, usize), payload: &[u8]) -> Gathered {
        let Some(room) = self.room.checked_sub(payload.len()) else { return Gathered::Wrong };
        let Ok(events) = decode_events(payload) else { return Gathered::Wrong };
        self.room = room;
        if at != self.taken + 1 {
            return Gathered::Wrong;
        }
        self.taken = at;
        self.events.extend(events);
        if at == of { Gathered::Whole(next, std::mem::take(&mut self.events)) } else { Gathered::More }
    }
}

#[cfg(test)]
mod tests {
    use kvlane_indexer::{KvEvent, WorkerId};

    use super::*;
    use crate::dynamo::encode_events;

    #[test]
    fn a_snapshot_is_gathered_in_its_order_and_within_its_room() {
        let event = KvEvent::Cleared { tier: None };
        let payload = encode_events(WorkerId::new(1, 0), [(1, &event)].into_iter());
        let mut parts = Parts::new(2 * payload.len());
        assert!(matches!(parts.take((7, 1, 2), &payload), Gathered::More));
        assert!(matches!(parts.take((7, 2, 2), &payload), Gathered::Whole(7, events) if events.len() == 2));
        let mut parts = Parts::new(2 * payload.len() - 1);
        assert!(matches!(parts.take((7, 1, 2), &payload), Gathered::More));
        assert!(matches!(parts.take((7, 2, 2), &payload), Gathered::Wrong));
        for wrong in [0, 2, usize::MAX] {
            assert!(matches!(Parts::new(usize::MAX).take((7, wrong, 2), &payload), Gathered::Wrong));
        }
    }
}
