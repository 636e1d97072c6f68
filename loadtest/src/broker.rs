//! A small model that plays the user: it reads the last answer and asks the next question. Where it fails, or there is
//! none, questions are made offline.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::client::{Endpoint, Message, Patience, Question, Role};
use crate::corpus::follow_up;

/// Of the answer that it is shown, and of the question it may ask.
const SHOWN_CHARS: usize = 6000;
const MOST_TOKENS: usize = 96;
const MOST_CHARS: usize = 600;

#[derive(Debug)]
pub struct Broker {
    endpoint: Endpoint,
    asked: AtomicU64,
    failed: AtomicU64,
}

/// How often it was asked, and how often a question was made offline instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerReport {
    pub asked: u64,
    pub failed: u64,
}

/// Nobody waits longer for a question.
pub fn patience() -> Patience {
    let seconds = Duration::from_secs;
    Patience { connect: seconds(3), silence: seconds(10), whole: seconds(20) }
}

impl Broker {
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, asked: AtomicU64::new(0), failed: AtomicU64::new(0) }
    }

    pub fn report(&self) -> BrokerReport {
        BrokerReport {
            asked: self.asked.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
        }
    }

    /// The next question about a topic, and whatever happens there is one.
    pub async fn question(&self, topic: &str, answer: &str, id: &str, random: &mut StdRng) -> String {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let shown: String = answer.chars().take(SHOWN_CHARS).collect();
        let instruction = format!(
            "You are a curious engineer in a conversation about {topic}. Read the answer you were given and reply with \
             your next question about it: one or two sentences, only the question."
        );
        let messages = [
            Message { role: Role::System, content: instruction },
            Message { role: Role::User, content: shown },
        ];
        let question = Question {
            messages: &messages,
            max_tokens: MOST_TOKENS,
            session: None,
            request_id: &format!("{id}-question"),
            due: Instant::now(),
            begun: None,
        };
        let said = self.endpoint.ask(&question).await;
        let text: String = said.text.trim().chars().take(MOST_CHARS).collect();
        if said.measured.error.is_some() || text.is_empty() {
            self.failed.fetch_add(1, Ordering::Relaxed);
            return follow_up(answer, random);
        }
        text
    }
}
