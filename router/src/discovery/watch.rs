//! Looking after one worker.

use std::sync::Arc;

use kvlane_engine_adapters::http_client::HttpError;
use tokio_util::sync::CancellationToken;

use super::keeper::Keeper;
use super::worker::{EngineLoad, Worker, WorkerState};

/// Adapters may be loaded at any time, so a worker is asked what it serves again after this many looks.
const ASK_AGAIN: u32 = 10;

/// Asks the worker what it is until it answers, then looks after it, until stopped.
pub(super) async fn look_after(keeper: Arc<Keeper>, worker: Arc<Worker>, stop: CancellationToken) {
    let mut watcher = Watcher { keeper, worker, known: None, looks: 0, failures: 0, untrusted: false };
    while stop.run_until_cancelled(watcher.turn()).await.is_some() {
        let pause = tokio::time::sleep(watcher.keeper.config.probe_interval);
        if stop.run_until_cancelled(pause).await.is_none() {
            return;
        }
    }
}

struct Watcher {
    keeper: Arc<Keeper>,
    worker: Arc<Worker>,
    /// Where its metrics are and when its process was started, once it has joined.
    known: Option<(Option<&'static str>, Option<f64>)>,
    looks: u32,
    failures: u32,
    /// The last look failed because of TLS.
    untrusted: bool,
}

/// Why a look failed.
struct Trouble {
    why: String,
    /// Certificates or the like: nothing that passes by itself.
    untrusted: bool,
}

impl From<HttpError> for Trouble {
    fn from(error: HttpError) -> Self {
        Self { why: error.to_string(), untrusted: matches!(error, HttpError::Untrusted { .. }) }
    }
}

impl From<String> for Trouble {
    fn from(why: String) -> Self {
        Self { why, untrusted: false }
    }
}

impl Watcher {
    async fn turn(&mut self) {
        if self.worker.belief.takes_resync() {
            self.keeper.resync(&self.worker);
        }
        // Without a feed, what it is is asked anew, and that starts one.
        let fed = self.worker.feeds.lock().is_some();
        let looked = match self.known {
            Some(known) if fed && !self.looks.is_multiple_of(ASK_AGAIN) => self.look(known).await,
            _ => self.ask().await,
        };
        self.looks = self.looks.wrapping_add(1);
        match looked {
            Ok(()) => (self.failures, self.untrusted) = (0, false),
            Err(trouble) => self.failed(&trouble),
        }
        self.worker.connections.prune();
        for health in self.worker.feeds.lock().iter().flat_map(|feeds| feeds.health()) {
            health.check_silence();
        }
    }

    async fn ask(&mut self) -> Result<(), Trouble> {
        self.keeper.probe.alive(&self.worker.url).await?;
        let facts = self.keeper.probe.ask(&self.worker.url).await?;
        let (path, started) = (facts.metrics_path, facts.process_start);
        self.see_restart(started);
        self.set_load(EngineLoad {
            running: facts.running,
            waiting: facts.waiting,
            kv_usage: facts.kv_usage,
        });
        self.keeper.joined(&self.worker, facts).await?;
        self.known = Some((path, started));
        Ok(())
    }

    /// Cheaper than asking everything.
    async fn look(&mut self, (path, started): (Option<&'static str>, Option<f64>)) -> Result<(), Trouble> {
        self.keeper.probe.alive(&self.worker.url).await?;
        let Some(path) = path else { return Ok(()) };
        let facts = self.keeper.probe.load(&self.worker.url, path).await?;
        self.set_load(EngineLoad {
            running: facts.running,
            waiting: facts.waiting,
            kv_usage: facts.kv_usage,
        });
        if facts.process_start != started {
            // Another process may serve other models in other blocks.
            return self.ask().await;
        }
        Ok(())
    }

    fn set_load(&self, load: EngineLoad) {
        self.worker.set_engine_load(load, self.keeper.known(&self.worker), self.keeper.age());
    }

    fn see_restart(&self, started: Option<f64>) {
        if let Some((_, Some(before))) = self.known
            && started.is_some_and(|now| now != before)
        {
            tracing::warn!(worker = self.worker.name, "engine was restarted");
            self.worker.restarted(self.keeper.age());
            self.worker.feeds.lock().iter().for_each(|feeds| feeds.engine_restarted());
        }
    }

    fn failed(&mut self, trouble: &Trouble) {
        self.failures += 1;
        let (worker, joined, error) = (&self.worker, self.known.is_some(), trouble.why.as_str());
        if trouble.untrusted && !std::mem::replace(&mut self.untrusted, true) {
            tracing::error!(worker = worker.name, error, "TLS with this worker fails, nothing is sent there");
        }
        self.untrusted = trouble.untrusted;
        if !joined {
            if trouble.untrusted && self.failures >= self.keeper.config.down_after {
                worker.set_state(WorkerState::Down);
                return;
            }
            // Said once, not every second.
            if self.failures == self.keeper.config.down_after {
                tracing::warn!(worker = worker.name, error, "worker does not answer yet");
            }
            return;
        }
        if self.failures >= self.keeper.config.down_after && worker.set_state(WorkerState::Down) {
            tracing::warn!(worker = worker.name, error, "worker is down");
            self.known = None;
            worker.connections.close();
            worker.restarted(self.keeper.age());
            // Its connections may be half open, and what it holds when it is back is for it to say.
            self.keeper.unfeed(worker);
        }
    }
}
