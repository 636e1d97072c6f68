//! Conversations of several turns that go on whatever happens, each over a connection of its own.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::balancer::Balancer;
use super::caller::{Attempt, Caller, Ended};
use super::reference::Reference;
use super::tally::{Outcome, Record, Tally, Tried};
use crate::client::{Message, Role};
use crate::corpus::{Corpus, follow_up, opening};
use crate::think::Think;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Script {
    /// Conversations at a time.
    pub concurrency: usize,
    pub turns: (usize, usize),
    /// Mean pause between an answer and the next question.
    pub think_s: f64,
    pub max_tokens: usize,
    /// Documents that conversations are about, and their words.
    pub documents: usize,
    pub words: (usize, usize),
    /// Times a client tries again when nothing of an answer came; OpenAI's do twice.
    pub retries: usize,
    pub seed: u64,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            concurrency: 100,
            turns: (3, 5),
            think_s: 1.0,
            max_tokens: 48,
            documents: 12,
            words: (300, 400),
            retries: 2,
            seed: 1,
        }
    }
}

/// As OpenAI's clients wait before they try again: doubled each time, up to a quarter less.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// A turn whose answer was cut is asked again so often.
const ASKED_AGAIN: usize = 5;
/// How long what is running may take when all is over.
const END: Duration = Duration::from_secs(90);

struct Stage {
    script: Script,
    corpus: Corpus,
    balancer: Arc<Balancer>,
    reference: Arc<Reference>,
    tally: Arc<Tally>,
    stop: CancellationToken,
}

/// See the [module](self). They end when this goes.
#[derive(Debug)]
pub struct Conversations {
    tasks: JoinSet<anyhow::Result<()>>,
    stop: CancellationToken,
}

impl Conversations {
    pub fn start(
        script: Script,
        balancer: Arc<Balancer>,
        reference: Arc<Reference>,
        tally: Arc<Tally>,
    ) -> Self {
        let corpus = Corpus::synthetic(script.seed, script.documents, script.words);
        let stop = CancellationToken::new();
        let stage = Arc::new(Stage { script, corpus, balancer, reference, tally, stop: stop.clone() });
        let mut tasks = JoinSet::new();
        for n in 0..stage.script.concurrency {
            let stage = stage.clone();
            tasks.spawn(async move { stage.converse(n as u64).await });
        }
        Self { tasks, stop }
    }

    /// Lets each finish the request it is at.
    pub async fn finish(mut self) -> anyhow::Result<()> {
        self.stop.cancel();
        let ending = async {
            while let Some(ended) = self.tasks.join_next().await {
                ended.context("a conversation")??;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(END, ending).await.with_context(|| format!("not over within {END:?}"))?
    }
}

impl Stage {
    /// One conversation after the other, until stopped.
    async fn converse(&self, n: u64) -> anyhow::Result<()> {
        let mut random = StdRng::seed_from_u64(self.script.seed.wrapping_mul(0x9e37_79b9).wrapping_add(n));
        let think = Think::Exponential { mean_s: self.script.think_s };
        let mut caller = Caller::new(self.balancer.address);
        // Not all at once.
        self.pause(think.sample(&mut random)).await;
        while !self.stop.is_cancelled() {
            let document = &self.corpus.documents[random.random_range(0..self.corpus.documents.len())];
            // What others do not have, so that conversations differ from their first answer on.
            let first = format!("{}\n\nMy number is {}.", opening(document), random.random::<u32>());
            let mut messages = vec![Message { role: Role::User, content: first }];
            let (few, many) = self.script.turns;
            for _ in 0..random.random_range(few..=many) {
                let Some(answer) = self.turn(&mut caller, &messages, &mut random).await? else { break };
                let question = follow_up(&answer, &mut random);
                messages.push(Message { role: Role::Assistant, content: answer });
                messages.push(Message { role: Role::User, content: question });
                self.pause(think.sample(&mut random)).await;
                if self.stop.is_cancelled() {
                    break;
                }
            }
            // The next one is somebody else's.
            caller.hang_up();
        }
        Ok(())
    }

    async fn pause(&self, pause: Duration) {
        let _ = self.stop.run_until_cancelled(tokio::time::sleep(pause)).await;
    }

    /// One turn's whole answer; asked again where it was cut, as a person would. None when that does not help, or it is
    /// all over.
    async fn turn(
        &self,
        caller: &mut Caller,
        messages: &[Message],
        random: &mut StdRng,
    ) -> anyhow::Result<Option<String>> {
        let body = json!({
            "model": "kvlane-small",
            "messages": messages,
            "max_tokens": self.script.max_tokens,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        for _ in 0..ASKED_AGAIN {
            if let Some(answer) = self.request(caller, &body, random).await? {
                return Ok(Some(answer));
            }
            if self.stop.is_cancelled() {
                break;
            }
        }
        Ok(None)
    }

    /// One request with its client's retries, counted; the text of a whole answer.
    async fn request(
        &self,
        caller: &mut Caller,
        body: &Value,
        random: &mut StdRng,
    ) -> anyhow::Result<Option<String>> {
        let bytes = bytes::Bytes::from(body.to_string());
        let (mut tries, mut why): (Vec<Tried>, String) = (Vec::new(), String::new());
        let mut pause = FIRST_PAUSE;
        let last: Attempt = loop {
            let attempt = caller.ask(bytes.clone()).await;
            let router = attempt.from.and_then(|from| self.balancer.router_of(from));
            tries.push(Tried { began: attempt.began, over: attempt.over, router });
            if attempt.ended != Ended::Whole {
                why = attempt.ended.why();
            }
            if !attempt.ended.tried_again() || tries.len() > self.script.retries {
                break attempt;
            }
            tokio::time::sleep(pause.mul_f64(random.random_range(0.75..=1.0))).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        };
        let outcome = match last.ended {
            Ended::Whole if tries.len() > 1 => Outcome::WholeAfterRetry,
            Ended::Whole => Outcome::Whole,
            Ended::Refused { .. } | Ended::Unanswered(_) => Outcome::FailedBefore,
            Ended::Told(_) => Outcome::CutTold,
            Ended::Silent(_) => Outcome::CutSilently,
        };
        // Of one that was cut, what came has to be how the whole one begins.
        let whole = self.reference.answer(body).await?;
        let wrong_text = match last.ended {
            Ended::Whole => last.text != whole,
            _ => !whole.starts_with(&last.text),
        };
        let (prompt_tokens, cached_tokens) = (last.prompt_tokens, last.cached_tokens);
        self.tally.add(&Record { outcome, why, tries, wrong_text, prompt_tokens, cached_tokens });
        Ok((last.ended == Ended::Whole).then_some(last.text))
    }
}
