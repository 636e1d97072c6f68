//! The requests of a trace as text: equal names of stretches become equal words, about as many as they had tokens.

use std::time::Duration;

use crate::client::{Message, Role};
use crate::corpus::own_text;
use crate::trace::Trace;

use super::Script;

#[derive(Debug)]
pub struct Replay {
    trace: Trace,
    hash_tokens: usize,
    /// Of the endpoint's tokenizer, with words of ours.
    tokens_per_word: f64,
    most_output: usize,
}

impl Replay {
    pub fn new(trace: Trace, hash_tokens: usize, tokens_per_word: f64, most_output: usize) -> Self {
        Self { trace, hash_tokens, tokens_per_word, most_output }
    }

    /// When each is due, at so many times the trace's speed.
    pub fn moments(&self, speed: f64) -> Vec<Duration> {
        let first = self.trace.requests.first().map_or(0.0, |request| request.timestamp);
        let due = |timestamp: f64| Duration::from_secs_f64((timestamp - first) / 1e3 / speed);
        self.trace.requests.iter().map(|request| due(request.timestamp)).collect()
    }

    pub(super) fn script(&self, number: u64) -> Script {
        let request = &self.trace.requests[number as usize % self.trace.requests.len()];
        let words = |tokens: usize| (tokens as f64 / self.tokens_per_word) as usize;
        let mut left = request.input_length;
        let mut parts = Vec::new();
        for name in &request.hash_ids {
            let tokens = left.min(self.hash_tokens);
            left -= tokens;
            let text = own_text(*name, words(self.hash_tokens).max(3));
            // A stretch that is cut short begins as the whole one does.
            let share = tokens as f64 / self.hash_tokens as f64;
            let end = text.char_indices().nth((text.chars().count() as f64 * share) as usize);
            parts.push(end.map_or(text.as_str(), |(end, _)| &text[..end]).to_owned());
        }
        if left > 0 || parts.is_empty() {
            parts.push(own_text(1 << 63 | number, words(left).max(3)));
        }
        Script {
            topic: "trace".into(),
            messages: vec![Message { role: Role::User, content: parts.join("\n") }],
            turn: 1,
            turns: 1,
            max_tokens: request.output_length.clamp(1, self.most_output),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_are_equal_words_and_lengths_are_kept() {
        let lines = [
            r#"{"timestamp": 100, "input_length": 1100, "output_length": 40, "hash_ids": [7, 8, 9]}"#,
            r#"{"timestamp": 600, "input_length": 1536, "output_length": 9000, "hash_ids": [7, 8, 9]}"#,
        ];
        let trace = Trace::parse(&lines.join("\n"), "t").unwrap();
        let replay = Replay::new(trace, 512, 1.5, 2000);
        let (short, long) = (replay.script(0), replay.script(1));
        assert_eq!((short.max_tokens, long.max_tokens), (40, 2000));
        let text = |script: &Script| script.messages[0].content.clone();
        assert!(text(&long).starts_with(&text(&short)), "the longer one continues the shorter");
        let words = text(&long).split_whitespace().count() as f64;
        assert!((words * 1.5 / 1536.0 - 1.0).abs() < 0.1, "{words} words");
        assert_eq!(replay.moments(2.0), [Duration::ZERO, Duration::from_millis(250)]);
    }
}
