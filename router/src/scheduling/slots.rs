//! How many requests a worker runs at a time: what was said, corrected by what its engine shows.
//!
//! One that lets requests wait, look after look, while it goes on running 48 has room for 48, be it for want of slots
//! or of memory. One that runs more than was thought proves the thought wrong, and then the number is open until it is
//! seen full. Nothing said and nothing seen leaves it open, too: nobody is full then.

use std::time::Duration;

/// For so long a full engine is remembered as full: what it lacked may have been memory.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Looks that have to agree. Few prove nothing: requests also wait for the step they came in to end, and while long
/// prompts are computed.
const STEADY: u32 = 3;

/// Fed with an engine's own counts, whenever they are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlotSense {
    /// Looks in a row at which requests waited and it ran about as many.
    steady: u32,
    running: usize,
    /// How many it ran when it was full, and when that was.
    full: Option<(usize, Duration)>,
    /// The most it was seen running.
    most: usize,
}

impl SlotSense {
    /// The engine says so, at a time counted from anywhere.
    pub fn observe(&mut self, running: usize, waiting: usize, now: Duration) {
        let same = running.abs_diff(self.running) <= running / 16;
        self.steady = match self.steady {
            _ if waiting == 0 || running == 0 => 0,
            steady if same => steady + 1,
            _ => 1,
        };
        self.running = running;
        self.most = self.most.max(running);
        if self.steady >= STEADY {
            self.full = Some((running, now));
        } else if self.full.is_some_and(|(full, _)| running > full) {
            self.full = None;
        }
    }

    /// It is another process now.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// The number to go by.
    pub fn slots(&self, said: Option<usize>, now: Duration) -> Option<usize> {
        let said = said.filter(|said| *said >= self.most);
        match self.full {
            Some((full, at)) if now.saturating_sub(at) < REMEMBERED => Some(full),
            _ => said,
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
        assert_eq!(sense.slots(Some(64), at(2)), None, "said too little, and who knows how much it is");
        for second in 3..6 {
            sense.observe(96, 2, at(second));
        }
        assert_eq!(sense.slots(Some(64), at(8)), Some(96), "that is how much");
        assert_eq!(sense.slots(Some(64), at(900)), None, "or was");
        let mut sense = SlotSense::default();
        for (running, waiting) in [(48, 3), (48, 3), (30, 9), (48, 0), (48, 1), (47, 3)] {
            sense.observe(running, waiting, at(2));
            assert_eq!(sense.slots(Some(64), at(2)), Some(64), "that may be chance");
        }
        sense.observe(48, 3, at(3));
        assert_eq!((sense.slots(Some(64), at(4)), sense.slots(None, at(4))), (Some(48), Some(48)));
        assert_eq!(sense.slots(Some(64), at(63)), Some(64), "that is over");
        assert_eq!(sense.slots(None, at(900)), None);
        sense.observe(49, 0, at(5));
        assert_eq!(sense.slots(Some(64), at(5)), Some(64), "it was not full after all");
        sense.forget();
        assert_eq!(sense.slots(None, at(9)), None);
    }
}
