//! Workers as their bridges announce them, for as long as they do.

use std::collections::BTreeMap;
use std::time::Duration;

use kvlane_indexer::WorkerId;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// What a bridge says of its worker, once a second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Announcement {
    pub worker_id: u64,
    pub dp_rank: u32,
    /// Where the worker's API is.
    pub url: String,
    pub model: String,
    /// `vllm`, `sglang` or `trtllm`.
    pub engine: String,
    pub block_size: u32,
    /// Requests it runs at a time.
    pub slots: Option<u32>,
    pub kv_blocks: Option<u64>,
    /// Blocks in use by requests, when the engine says so.
    pub used_blocks: Option<u64>,
    /// Blocks its bridge knows to be cached.
    pub held_blocks: usize,
    /// The bridge's run: a new one starts over.
    pub publisher: u64,
    /// Number of the message that comes next; more than a listener expects means that it missed some.
    pub next_sequence: u64,
    /// The last one: the worker leaves.
    pub leaving: bool,
}

impl Announcement {
    pub fn worker(&self) -> WorkerId {
        WorkerId::new(self.worker_id, self.dp_rank)
    }
}

/// A worker that was not announced for this long is not there.
const EXPIRES: Duration = Duration::from_secs(10);
/// Workers remembered at a time.
const MOST: usize = 4096;

/// Who is there.
#[derive(Debug, Default)]
pub struct Announcements {
    workers: BTreeMap<WorkerId, (Announcement, Instant)>,
}

impl Announcements {
    /// Takes one in; true when something about who is there changed.
    pub fn hear(&mut self, announcement: &Announcement) -> bool {
        let worker = announcement.worker();
        if announcement.leaving {
            // One run's goodbye does not send the next one away.
            let same =
                self.workers.get(&worker).is_some_and(|(known, _)| known.publisher == announcement.publisher);
            return same && self.workers.remove(&worker).is_some();
        }
        if self.workers.len() >= MOST && !self.workers.contains_key(&worker) {
            return false;
        }
        let before = self.workers.insert(worker, (announcement.clone(), Instant::now()));
        before.is_none_or(|(before, _)| {
            (before.publisher, before.url) != (announcement.publisher, announcement.url.clone())
        })
    }

    /// Nobody could be heard: everybody has as long again.
    pub fn postpone(&mut self) {
        let now = Instant::now();
        self.workers.values_mut().for_each(|(_, heard)| *heard = now);
    }

    /// Forgets who has not been heard of; says whom.
    pub fn expire(&mut self) -> Vec<WorkerId> {
        let gone: Vec<WorkerId> = self
            .workers
            .iter()
            .filter(|(_, (_, heard))| heard.elapsed() > EXPIRES)
            .map(|(worker, _)| *worker)
            .collect();
        gone.iter().for_each(|worker| drop(self.workers.remove(worker)));
        gone
    }

    pub fn get(&self, worker: WorkerId) -> Option<&Announcement> {
        self.workers.get(&worker).map(|(announcement, _)| announcement)
    }

    pub fn all(&self) -> impl Iterator<Item = &Announcement> {
        self.workers.values().map(|(announcement, _)| announcement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn workers_are_there_for_as_long_as_they_are_announced() {
        let mut announcements = Announcements::default();
        let worker =
            |publisher, leaving| Announcement { worker_id: 7, publisher, leaving, ..Announcement::default() };
        assert!(announcements.hear(&worker(1, false)) && !announcements.hear(&worker(1, false)));
        assert!(announcements.hear(&worker(2, false)), "a new run");
        assert!(!announcements.hear(&worker(1, true)), "the old run's goodbye");
        tokio::time::advance(EXPIRES / 2).await;
        announcements.hear(&worker(2, false));
        tokio::time::advance(EXPIRES).await;
        assert_eq!(announcements.expire(), []);
        tokio::time::advance(EXPIRES * 3).await;
        announcements.postpone();
        assert_eq!(announcements.expire(), [], "nobody could be heard");
        tokio::time::advance(EXPIRES * 2).await;
        assert_eq!(announcements.expire(), [WorkerId::new(7, 0)]);
        assert!(announcements.hear(&worker(2, false)) && announcements.hear(&worker(2, true)));
        assert_eq!(announcements.all().count(), 0);
    }
}
