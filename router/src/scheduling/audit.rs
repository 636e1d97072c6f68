//! Whether what the index says of a worker agrees with what the worker then reports.
//!
//! The index may say less than there is, never more. Where answer after answer has far fewer cached tokens than was
//! said, the index is wrong about that worker: it is suspect, believed only as far as it proved right, and is to be
//! built anew. Fed by answers of one worker, in any order.

/// Answers a judgement takes.
const WINDOW: u32 = 32;
/// Of the tokens that should have been cached, the share that may be missing: evictions overtake placements.
const MISSING: f64 = 0.2;
/// Of the cached tokens, the share the index may not have known of.
const UNSEEN: f64 = 0.5;

/// One answer's numbers, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// What the index said was cached, confirmed by the worker's own events.
    pub predicted: usize,
    pub reported: usize,
    /// The prompt's length, as counted here and there.
    pub prompt_here: usize,
    pub prompt_there: usize,
    pub block: usize,
}

/// What is wrong, as far as numbers tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Prompts have another length there.
    Template,
    /// Cached tokens do not come in our blocks.
    BlockSize,
    /// Nothing is ever cached.
    NoCaching,
    /// Events were lost, or come too late.
    Events,
    /// There is more than the events say.
    Salt,
}

impl Cause {
    pub fn name(self) -> &'static str {
        match self {
            Self::Template => "template",
            Self::BlockSize => "block_size",
            Self::NoCaching => "no_caching",
            Self::Events => "events",
            Self::Salt => "salt",
        }
    }

    /// Whether learning again what the worker holds may mend it.
    pub fn resync_helps(self) -> bool {
        matches!(self, Self::Events)
    }

    /// What to look at.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Template => {
                "prompts have another length at the engine: its chat template or tokenizer is not ours (--model-path)"
            }
            Self::BlockSize => {
                "its cached tokens do not come in blocks of ours: compare --kv-cache-block-size with the engine's"
            }
            Self::NoCaching => "it reports no cached tokens at all: is prefix caching on at the engine?",
            Self::Events => "removals did not arrive: its KV events are lost or late",
            Self::Salt => {
                "it has more cached than its events say: a cache salt, a LoRA name or a template may differ, or events \
                 are missing"
            }
        }
    }
}

/// A judgement over a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// It holds less than was said. Believe this share.
    Suspect {
        trust: f64,
        cause: Cause,
    },
    /// It holds more than was said.
    Unseen(Cause),
    Agrees,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct OverlapAudit {
    /// Answers that should have had something cached, and what of it was missing.
    expected: u32,
    predicted: usize,
    missing: usize,
    /// Answers that had something cached, and what of it was not known.
    found: u32,
    reported: usize,
    unseen: usize,
    other_length: u32,
    uneven: u32,
}

impl OverlapAudit {
    /// An answer came. A verdict when enough have.
    pub fn observe(&mut self, answer: Answered) -> Option<Verdict> {
        let Answered { predicted, reported, prompt_here, prompt_there, block } = answer;
        // The last token is always computed, so a prompt of whole blocks has one block less.
        let slack = block + 1;
        if predicted > slack {
            self.expected += 1;
            self.predicted += predicted;
            let missing = predicted.saturating_sub(reported);
            self.missing += if missing > slack { missing } else { 0 };
        }
        if reported > slack {
            self.found += 1;
            self.reported += reported;
            let unseen = reported.saturating_sub(predicted);
            self.unseen += if unseen > slack { unseen } else { 0 };
        }
        if predicted > slack || reported > slack {
            self.other_length += u32::from(prompt_here != prompt_there);
            self.uneven += u32::from(reported % block.max(1) != 0);
        }
        let verdict = if self.expected >= WINDOW {
            let missing = self.missing as f64 / self.predicted.max(1) as f64;
            if missing > MISSING {
                Verdict::Suspect { trust: 1.0 - missing, cause: self.cause() }
            } else {
                Verdict::Agrees
            }
        } else if self.found >= 2 * WINDOW {
            if self.unseen as f64 > UNSEEN * self.reported as f64 {
                Verdict::Unseen(self.unseen_cause())
            } else {
                Verdict::Agrees
            }
        } else {
            return None;
        };
        *self = Self::default();
        Some(verdict)
    }

    fn mostly(&self, count: u32) -> bool {
        2 * count > self.expected.max(self.found)
    }

    fn cause(&self) -> Cause {
        if self.mostly(self.other_length) {
            Cause::Template
        } else if self.reported == 0 {
            Cause::NoCaching
        } else if self.mostly(self.uneven) {
            Cause::BlockSize
        } else {
            Cause::Events
        }
    }

    fn unseen_cause(&self) -> Cause {
        if self.mostly(self.other_length) { Cause::Template } else { Cause::Salt }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(answer: Answered) -> Verdict {
        let mut audit = OverlapAudit::default();
        (0..1000).find_map(|_| audit.observe(answer)).unwrap()
    }

    const GOOD: Answered =
        Answered { predicted: 320, reported: 320, prompt_here: 400, prompt_there: 400, block: 32 };

    #[test]
    fn each_disagreement_has_its_cause() {
        assert_eq!(judged(GOOD), Verdict::Agrees);
        // A block less is the last one, which is always computed.
        assert_eq!(judged(Answered { reported: 288, ..GOOD }), Verdict::Agrees);
        let suspect = |trust, cause| Verdict::Suspect { trust, cause };
        assert_eq!(judged(Answered { reported: 0, ..GOOD }), suspect(0.0, Cause::NoCaching));
        assert_eq!(judged(Answered { reported: 160, ..GOOD }), suspect(0.5, Cause::Events));
        assert_eq!(judged(Answered { reported: 80, ..GOOD }), suspect(0.25, Cause::BlockSize));
        assert_eq!(
            judged(Answered { reported: 80, prompt_there: 410, ..GOOD }),
            suspect(0.25, Cause::Template)
        );
        assert_eq!(judged(Answered { predicted: 0, ..GOOD }), Verdict::Unseen(Cause::Salt));
        assert_eq!(
            judged(Answered { predicted: 0, prompt_there: 401, ..GOOD }),
            Verdict::Unseen(Cause::Template)
        );
    }

    #[test]
    fn now_and_then_is_no_disagreement() {
        let mut audit = OverlapAudit::default();
        for n in 0..10 * WINDOW {
            let reported = if n % 10 == 0 { 0 } else { 320 };
            let verdict = audit.observe(Answered { reported, ..GOOD });
            assert!(verdict.is_none_or(|verdict| verdict == Verdict::Agrees));
        }
    }
}
