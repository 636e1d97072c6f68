//! How many requests a worker runs at a time: what was said, corrected by what its engine shows.
//!
//! An engine that runs 70 has at least 70 slots, whatever was said. One that lets requests wait while it runs 48 has
//! room for 48 now, be it for want of slots or of memory. Nothing said and nothing seen leaves the number open.

use std::time::Duration;

/// For so long a full engine is remembered as full.
const REMEMBERED: Duration = Duration::from_secs(5);

/// Fed with an engine's own counts, whenever they are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlotSense {
    /// The most it was seen running.
    most: usize,
    /// Requests waited the last time it was looked at. Once proves nothing: a request also waits for the step it
    /// came in to end.
    waited: bool,
    /// How many it ran when requests last had to wait for it, and when that was.
    saturated: Option<(usize, Duration)>,
}

impl SlotSense {
    /// The engine says so, at a time counted from anywhere.
    pub fn observe(&mut self, running: usize, waiting: usize, now: Duration) {
        self.most = self.most.max(running);
        let waits = waiting > 0 && running > 0;
        if waits && self.waited {
            self.saturated = Some((running, now));
        }
        self.waited = waits;
    }

    /// It is another process now.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// The number to go by.
    pub fn slots(&self, said: Option<usize>, now: Duration) -> Option<usize> {
        match (self.saturated, said) {
            (Some((running, at)), _) if now.saturating_sub(at) < REMEMBERED => Some(running),
            (_, Some(said)) => Some(said.max(self.most)),
            // Learned when it was last full; it may have grown since.
            (Some((running, _)), None) => Some(running.max(self.most)),
            (None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seen_corrects_what_was_said() {
        let at = Duration::from_secs;
        let mut sense = SlotSense::default();
        assert_eq!((sense.slots(Some(64), at(0)), sense.slots(None, at(0))), (Some(64), None));
        sense.observe(30, 0, at(1));
        assert_eq!((sense.slots(Some(64), at(1)), sense.slots(None, at(1))), (Some(64), None));
        sense.observe(80, 0, at(2));
        assert_eq!(sense.slots(Some(64), at(2)), Some(80), "said too little");
        let mut sense = SlotSense::default();
        sense.observe(48, 3, at(2));
        assert_eq!(sense.slots(Some(64), at(2)), Some(64), "once is chance");
        sense.observe(48, 3, at(3));
        assert_eq!((sense.slots(Some(64), at(4)), sense.slots(None, at(4))), (Some(48), Some(48)));
        assert_eq!(sense.slots(Some(64), at(9)), Some(64), "that is over");
        assert_eq!(sense.slots(None, at(9)), Some(48), "nothing better is known");
        sense.forget();
        assert_eq!(sense.slots(None, at(9)), None);
    }
}
