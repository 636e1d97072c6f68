//! What can be made to go wrong, for tests. All of it off unless the worker was started with fault switches.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// The switches, as `POST /faults` takes them and `GET /faults` shows them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Requests are taken and nothing comes out.
    pub hang: bool,
    /// How many times slower the engine runs.
    pub slow: f64,
    /// Share of event batches that are numbered and never sent.
    pub drop_events: f64,
    /// Share of event batches sent twice.
    pub duplicate_events: f64,
    /// Share of event batches sent after the next one.
    pub reorder_events: f64,
    /// Streams are cut after this many chunks.
    pub close_after_chunks: Option<u64>,
    /// Completions are answered with this status.
    pub status: Option<u16>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            hang: false,
            slow: 1.0,
            drop_events: 0.0,
            duplicate_events: 0.0,
            reorder_events: 0.0,
            close_after_chunks: None,
            status: None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("`{field}` is {value}, expected {expected}")]
pub struct FaultError {
    pub field: &'static str,
    value: String,
    expected: &'static str,
}

impl Faults {
    pub fn validate(&self) -> Result<(), FaultError> {
        let refuse = |field, value: String, expected| Err(FaultError { field, value, expected });
        for (field, share) in [
            ("drop_events", self.drop_events),
            ("duplicate_events", self.duplicate_events),
            ("reorder_events", self.reorder_events),
        ] {
            if !(0.0..=1.0).contains(&share) {
                return refuse(field, share.to_string(), "a share between 0 and 1");
            }
        }
        if !(0.001..=1e6).contains(&self.slow) {
            return refuse("slow", self.slow.to_string(), "a factor between 0.001 and 1000000");
        }
        match self.status {
            Some(status) if !(400..=599).contains(&status) => {
                refuse("status", status.to_string(), "an HTTP error between 400 and 599")
            }
            _ => Ok(()),
        }
    }
}

/// The switches as they stand. The server writes them; driver and streams read.
#[derive(Debug)]
pub(super) struct Switches {
    current: Mutex<Faults>,
    /// How often they were set.
    changed: watch::Sender<u64>,
}

impl Switches {
    pub(super) fn new() -> Self {
        Self { current: Mutex::new(Faults::default()), changed: watch::Sender::new(0) }
    }

    pub(super) fn get(&self) -> Faults {
        self.current.lock().clone()
    }

    pub(super) fn set(&self, faults: Faults) {
        *self.current.lock() = faults;
        self.changed.send_modify(|times| *times += 1);
    }

    /// Whether they were set since the time `seen`, which is brought up to date.
    pub(super) fn changed_since(&self, seen: &mut u64) -> bool {
        let now = *self.changed.borrow();
        std::mem::replace(seen, now) != now
    }

    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}
