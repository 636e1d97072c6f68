//! Load in real time against an endpoint: conversations that resend their history, one after the other.
//!
//! A closed loop keeps a number of conversations going, which may be changed at any time; an open loop starts them at
//! moments drawn beforehand, whether the last ones are over or not. Whatever comes back is counted by one collector.

mod collector;
mod self_check;

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp1};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::collector::{Collector, Report, TurnRecord};
pub use self::self_check::{SelfCheck, SelfReport};
use crate::client::{Endpoint, Message, Question, Role};
use crate::corpus::{Corpus, follow_up, opening};

/// What conversations are like.
#[derive(Clone, Copy, Debug)]
pub struct Talk {
    pub turns: (usize, usize),
    pub max_tokens: usize,
    /// Mean seconds before a question is answered by the next one, exponentially distributed.
    pub think_s: f64,
    /// Whether requests name their conversation.
    pub names_session: bool,
}

/// When conversations begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// So many at a time, a new one when one is over.
    Closed(usize),
    /// So many a second on average, at random (Poisson); at most so many at a time.
    Poisson { per_second: f64, most: usize },
    /// The same at even distances.
    Constant { per_second: f64, most: usize },
}

/// A load that can be started.
#[derive(Debug)]
pub struct Load {
    pub endpoint: Endpoint,
    pub corpus: Corpus,
    pub talk: Talk,
    pub seed: u64,
    pub collector: Arc<Collector>,
}

/// A load that runs. It ends when told, or when this is dropped.
#[derive(Debug)]
pub struct Running {
    conversations: watch::Sender<usize>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Running {
    /// As many conversations as that from now on; those beyond it end with their turn.
    pub fn set_conversations(&self, count: usize) {
        self.conversations.send_replace(count);
    }

    /// No more questions; those that were asked are waited for that long.
    pub async fn stop(self, patience: Duration) {
        self.stop.cancel();
        self.tasks.close();
        let _ = tokio::time::timeout(patience, self.tasks.wait()).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Load {
    pub fn start(self, arrivals: Arrivals) -> Running {
        let load = Arc::new(self);
        let (conversations, wanted) = watch::channel(match arrivals {
            Arrivals::Closed(count) => count,
            _ => 0,
        });
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        match arrivals {
            Arrivals::Closed(_) => {
                tasks.spawn(keep(load, wanted, tasks.clone(), stop.clone()));
            }
            Arrivals::Poisson { per_second, most } => {
                tasks.spawn(arrive(load, (per_second, true), most, tasks.clone(), stop.clone()));
            }
            Arrivals::Constant { per_second, most } => {
                tasks.spawn(arrive(load, (per_second, false), most, tasks.clone(), stop.clone()));
            }
        }
        Running { conversations, stop, tasks }
    }

    /// One conversation from its first question to its last answer. An answer that fails ends it.
    async fn converse(&self, number: u64, mut due: Instant, goes_on: impl Fn() -> bool) {
        let mut random = StdRng::seed_from_u64(self.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let document = self.corpus.pick(&mut random);
        let turns = random.random_range(self.talk.turns.0..=self.talk.turns.1);
        let session = format!("kvlane-load-{}-{number}", self.seed);
        let mut messages = vec![Message { role: Role::User, content: opening(document) }];
        let _active = self.collector.begins();
        for turn in 1..=turns {
            let request_id = format!("{session}-{turn}");
            let question = Question {
                messages: &messages,
                max_tokens: self.talk.max_tokens,
                session: self.talk.names_session.then_some(session.as_str()),
                request_id: &request_id,
                due,
            };
            let answer = self.endpoint.ask(&question).await;
            let failed = answer.measured.error.is_some();
            self.collector.take(TurnRecord {
                conversation: number,
                topic: document.topic.clone(),
                turn,
                request_id,
                worker: answer.worker,
                measured: answer.measured,
                complaint: answer.complaint,
            });
            if failed || turn == turns || !goes_on() {
                return;
            }
            messages.push(Message { role: Role::Assistant, content: answer.text });
            let next = follow_up(&messages[messages.len() - 1].content, &mut random);
            messages.push(Message { role: Role::User, content: next });
            let drawn: f64 = Exp1.sample(&mut random);
            due = Instant::now() + Duration::from_secs_f64(drawn * self.talk.think_s);
            tokio::time::sleep_until(due).await;
        }
    }
}

/// Keeps as many conversations going as are wanted.
async fn keep(
    load: Arc<Load>,
    mut wanted: watch::Receiver<usize>,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let mut started = 0;
    let numbers = Arc::new(std::sync::atomic::AtomicU64::new(0));
    loop {
        let want = *wanted.borrow_and_update();
        // Each place is one loop; those beyond what is wanted sleep.
        while started < want {
            let (load, stop, numbers) = (load.clone(), stop.clone(), numbers.clone());
            let (place, mut wanted) = (started, wanted.clone());
            started += 1;
            tasks.spawn(async move {
                let idle = Duration::from_millis(place as u64 * 10 % 2000);
                if stop.run_until_cancelled(tokio::time::sleep(idle)).await.is_none() {
                    return;
                }
                while !stop.is_cancelled() {
                    let seats = wanted.wait_for(|want| place < *want);
                    if stop.run_until_cancelled(seats).await.is_none_or(|seat| seat.is_err()) {
                        return;
                    }
                    let number = numbers.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let (wanted, stop) = (wanted.clone(), stop.clone());
                    load.converse(number, Instant::now(), || {
                        place < *wanted.borrow() && !stop.is_cancelled()
                    })
                    .await;
                    // An endpoint that fails at once is not to be hammered.
                    load.collector.pause_after_failure().await;
                }
            });
        }
        if stop.run_until_cancelled(wanted.changed()).await.is_none_or(|changed| changed.is_err()) {
            return;
        }
    }
}

/// Begins conversations at moments that do not depend on how the last ones do.
async fn arrive(
    load: Arc<Load>,
    (per_second, random_gaps): (f64, bool),
    most: usize,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let mut random = StdRng::seed_from_u64(load.seed);
    let mut due = Instant::now();
    for number in 0.. {
        let drawn: f64 = if random_gaps { Exp1.sample(&mut random) } else { 1.0 };
        due += Duration::from_secs_f64(drawn / per_second);
        if stop.run_until_cancelled(tokio::time::sleep_until(due)).await.is_none() {
            return;
        }
        if load.collector.active() >= most {
            load.collector.passes_over();
            continue;
        }
        let (load, stop) = (load.clone(), stop.clone());
        tasks.spawn(async move { load.converse(number, due, || !stop.is_cancelled()).await });
    }
}
