//! Where a reader is in a numbered stream of batches, and what a number means: the next one, one seen before,
//! a gap, or a publisher that has started over.

/// What a number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Next,
    /// Seen before; to be ignored.
    Duplicate,
    /// Some were missed: `expected` was to come.
    Gap {
        expected: u64,
    },
    /// The publisher counts from the beginning again: whatever it held is gone.
    Restart,
}

/// One publisher's stream. A stream that is met in its middle begins with a gap.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EventCursor {
    expected: u64,
    /// When the first and the last batch were made, by the publisher's clock.
    first_seconds: f64,
    last_seconds: f64,
}

impl EventCursor {
    /// The number that is expected next.
    pub fn expected(&self) -> u64 {
        self.expected
    }

    /// Judges a batch without moving. `seconds` is when it was made: numbers that went back are a repeated batch
    /// when it is old, and a new process when it is younger than everything before.
    pub fn judge(&self, number: u64, seconds: f64) -> Verdict {
        match number.cmp(&self.expected) {
            std::cmp::Ordering::Equal => Verdict::Next,
            std::cmp::Ordering::Greater => Verdict::Gap { expected: self.expected },
            std::cmp::Ordering::Less if seconds > self.last_seconds => Verdict::Restart,
            // Even if its clock went back.
            std::cmp::Ordering::Less if number == 0 && seconds != self.first_seconds => Verdict::Restart,
            std::cmp::Ordering::Less => Verdict::Duplicate,
        }
    }

    /// A batch was taken in; the one after it is next.
    pub fn passed(&mut self, number: u64, seconds: f64) {
        if number == 0 {
            self.first_seconds = seconds;
        }
        self.expected = number.saturating_add(1);
        self.last_seconds = self.last_seconds.max(seconds);
    }

    /// Back to the beginning, knowing nothing.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_next_again_missing_or_from_a_new_process() {
        let mut cursor = EventCursor::default();
        assert_eq!(cursor.judge(5, 1.0), Verdict::Gap { expected: 0 });
        for number in 0..10 {
            assert_eq!(cursor.judge(number, number as f64), Verdict::Next);
            cursor.passed(number, number as f64);
        }
        assert_eq!(cursor.judge(9, 9.0), Verdict::Duplicate);
        assert_eq!(cursor.judge(3, 3.0), Verdict::Duplicate);
        assert_eq!(cursor.judge(12, 12.0), Verdict::Gap { expected: 10 });
        assert_eq!(cursor.judge(0, 0.0), Verdict::Duplicate);
        assert_eq!(cursor.judge(0, 50.0), Verdict::Restart);
        assert_eq!(cursor.judge(0, -50.0), Verdict::Restart, "by a clock that was set back");
        // A restart whose first batches were missed.
        assert_eq!(cursor.judge(4, 50.0), Verdict::Restart);
        cursor.passed(u64::MAX, 60.0);
        assert_eq!(cursor.judge(u64::MAX, 60.0), Verdict::Next, "saturates and does not wrap");
    }
}
