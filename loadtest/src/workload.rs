//! What is asked in real time: conversations over shared documents, prompts of a file, or the requests of a trace.

mod pool;
mod prompts;
mod replay;

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

pub use self::pool::{Groups, Pool};
pub use self::prompts::{Prompt, read_prompts};
pub use self::replay::Replay;
use crate::broker::Broker;
use crate::client::{Message, Role};
use crate::corpus::{follow_up, own_text};
use crate::think::Think;

/// What conversations are like.
#[derive(Debug)]
pub struct Conversations {
    pub pool: Pool,
    pub turns: (usize, usize),
    pub max_tokens: usize,
    pub think: Think,
    /// Who asks on; made offline where there is nobody.
    pub broker: Option<Broker>,
    /// Those that are there at the beginning are in the middle of it, with a past that is made up.
    pub steady_start: bool,
}

#[derive(Debug)]
pub enum Workload {
    Conversations(Box<Conversations>),
    /// One after the other, and from the start again.
    Prompts {
        prompts: Vec<Prompt>,
        max_tokens: usize,
    },
    Replay(Replay),
}

/// A conversation that is about to begin.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    pub topic: Arc<str>,
    pub messages: Vec<Message>,
    /// The turn it begins with, and its last.
    pub turn: usize,
    pub turns: usize,
    pub max_tokens: usize,
}

impl Workload {
    /// The conversation of a number, equal for equal seeds. `initial` is one of those that the load begins with.
    pub fn script(&self, number: u64, initial: bool, random: &mut StdRng) -> Script {
        match self {
            Self::Conversations(conversations) => conversations.script(number, initial, random),
            Self::Prompts { prompts, max_tokens } => {
                let prompt = &prompts[number as usize % prompts.len()];
                Script {
                    topic: prompt.topic.clone(),
                    messages: prompt.messages.clone(),
                    turn: 1,
                    turns: 1,
                    max_tokens: prompt.max_tokens.unwrap_or(*max_tokens),
                }
            }
            Self::Replay(replay) => replay.script(number),
        }
    }

    /// The next question, and how long its asker thinks.
    pub async fn next(
        &self,
        topic: &str,
        answer: &str,
        id: &str,
        random: &mut StdRng,
    ) -> (String, std::time::Duration) {
        let Self::Conversations(conversations) = self else {
            return (follow_up(answer, random), std::time::Duration::ZERO);
        };
        let question = match &conversations.broker {
            Some(broker) => broker.question(topic, answer, id, random).await,
            None => follow_up(answer, random),
        };
        (question, conversations.think.sample(random))
    }

    pub fn broker(&self) -> Option<&Broker> {
        match self {
            Self::Conversations(conversations) => conversations.broker.as_ref(),
            _ => None,
        }
    }
}

impl Conversations {
    fn script(&self, number: u64, initial: bool, random: &mut StdRng) -> Script {
        let (topic, opening) = self.pool.opening(number, random);
        let turns = random.random_range(self.turns.0..=self.turns.1);
        let mut messages = vec![Message { role: Role::User, content: opening }];
        let turn = if initial && self.steady_start { random.random_range(1..=turns) } else { 1 };
        for past in 1..turn {
            // About as long as answers are: three words for four tokens.
            let mut of_turn = StdRng::seed_from_u64(number ^ (past as u64) << 48);
            let words = of_turn.random_range(self.max_tokens / 4..=self.max_tokens * 3 / 4).max(1);
            let answer = own_text(number << 8 | past as u64, words);
            let question = follow_up(&answer, random);
            messages.push(Message { role: Role::Assistant, content: answer });
            messages.push(Message { role: Role::User, content: question });
        }
        Script { topic, messages, turn, turns, max_tokens: self.max_tokens }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::Corpus;

    #[test]
    fn those_there_at_the_beginning_may_have_a_past() {
        let conversations = Conversations {
            pool: Pool::documents(Corpus::synthetic(1, 3, (50, 60)), 0.0),
            turns: (5, 5),
            max_tokens: 100,
            think: Think::Fixed { seconds: 0.0 },
            broker: None,
            steady_start: true,
        };
        let workload = Workload::Conversations(Box::new(conversations));
        let script = |number, initial| workload.script(number, initial, &mut StdRng::seed_from_u64(number));
        for number in 0..50 {
            let script = script(number, true);
            assert_eq!(script.messages.len(), 2 * script.turn - 1);
        }
        assert!((0..50).any(|number| script(number, true).turn > 1));
        assert!((0..50).all(|number| script(number, false).turn == 1));
        assert_eq!(script(7, true), script(7, true));
    }
}
