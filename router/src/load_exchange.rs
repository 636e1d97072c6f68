//! Telling other routers of our load over NATS, and hearing of theirs: best effort, a few small messages a second.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use futures_util::StreamExt;
use tokio::time::{Instant, MissedTickBehavior};

use crate::scheduling::{LoadReport, Peers, Scheduler, Told};

/// How often everything is told, whether it changed or not.
const WHOLE: Duration = Duration::from_secs(1);
/// Larger messages than any router sends.
const MOST_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub struct LoadExchange {
    pub client: Client,
    pub subject: String,
    /// How often changes are told.
    pub every: Duration,
    pub scheduler: Arc<Scheduler>,
    pub peers: Arc<Peers>,
}

impl LoadExchange {
    /// Until dropped.
    pub async fn run(self) {
        // Who we are, among routers: told apart from our own words.
        let router = rand::random::<u64>();
        loop {
            match self.client.subscribe(self.subject.clone()).await {
                Ok(heard) => self.exchange(heard, router).await,
                Err(error) => tracing::warn!(%error, "other routers cannot be heard; trying again"),
            }
            self.peers.forget();
            tokio::time::sleep(WHOLE).await;
        }
    }

    /// Until the subscription ends.
    async fn exchange(&self, mut heard: async_nats::Subscriber, router: u64) {
        let mut told = Told::default();
        let mut last_whole: Option<Instant> = None;
        let mut ticks = tokio::time::interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = heard.next() => {
                    let Some(message) = message else { return };
                    self.hear(&message.payload, router);
                }
                _ = ticks.tick() => {
                    let now = Instant::now();
                    self.peers.settle(now);
                    let whole = last_whole.is_none_or(|last| now - last >= WHOLE);
                    if whole {
                        last_whole = Some(now);
                    }
                    let loads = self.scheduler.loads(self.scheduler.time(now));
                    let Some(report) = told.report(router, loads, whole) else { continue };
                    let Ok(message) = serde_json::to_vec(&report) else { continue };
                    // While the server is away nothing is kept: the next whole report says it all.
                    if self.client.connection_state() == async_nats::connection::State::Connected {
                        let _ = self.client.publish(self.subject.clone(), message.into()).await;
                    }
                }
            }
        }
    }

    fn hear(&self, message: &[u8], own: u64) {
        if message.len() > MOST_BYTES {
            return;
        }
        match serde_json::from_slice::<LoadReport>(message) {
            Ok(report) if report.router == own => {}
            Ok(report) => self.peers.heard(&report, Instant::now()),
            Err(error) => tracing::debug!(%error, "another router's load cannot be read"),
        }
    }
}
