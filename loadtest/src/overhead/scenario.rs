//! What is asked of routers, by name.

use std::time::Duration;

/// Whether texts were seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Texts {
    /// Conversations over a few long documents: every prompt but its last messages was there before.
    Shared,
    /// Every prompt is new from its first word.
    Fresh,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    pub name: String,
    pub texts: Texts,
    /// Tokens a prompt has, about.
    pub tokens: usize,
    /// Chunks of an answer, and the time between two of them.
    pub chunks: usize,
    pub pace: Duration,
    pub connections: usize,
    pub workers: usize,
    /// Requests a second, on as many connections as they need; none for one after the other on each connection.
    pub rate: Option<f64>,
    /// Acknowledges what it gets at once, as few clients do.
    pub quick_ack: bool,
    /// Requests of a round.
    pub requests: usize,
    /// Tokens of fresh prompts that another client asks all the while.
    pub beside: Option<usize>,
}

impl Scenario {
    /// The first of the two questions: prompts of about 3,500 tokens, 16 chunks, 32 connections.
    fn prompts() -> Self {
        Self {
            name: "A".to_owned(),
            texts: Texts::Shared,
            tokens: 3500,
            chunks: 16,
            pace: Duration::ZERO,
            connections: 32,
            workers: 4,
            rate: None,
            quick_ack: false,
            requests: 3000,
            beside: None,
        }
    }

    /// The other: short prompts and 128 chunks.
    fn chunks() -> Self {
        Self {
            name: "B".to_owned(),
            texts: Texts::Fresh,
            tokens: 100,
            chunks: 128,
            requests: 2000,
            ..Self::prompts()
        }
    }
}

/// Scenarios behind a name; none when nothing is called that.
pub fn named(name: &str) -> Option<Vec<Scenario>> {
    let (a, b) = (Scenario::prompts(), Scenario::chunks());
    let called = |name: &str, scenario: Scenario| Scenario { name: name.to_owned(), ..scenario };
    let slow = |scenario: &Scenario| Scenario { rate: Some(20.0), requests: 200, ..scenario.clone() };
    let per = |count: usize, requests: usize| (requests / count.max(1)).max(40);
    Some(match name {
        "a" => vec![called("A", a)],
        "cold" => vec![called("A, cold", Scenario { texts: Texts::Fresh, requests: 1500, ..a })],
        "paced" => {
            vec![called("B, paced", Scenario { pace: Duration::from_millis(6), requests: 256, ..b })]
        }
        "burst" => vec![called("B, burst", b)],
        "ttft" => vec![called("20 a second", slow(&a))],
        "quickack" => {
            vec![called("20 a second, quick-ack client", Scenario { quick_ack: true, ..slow(&a) })]
        }
        "fair" => vec![called(
            "100-token prompts beside 128k ones",
            Scenario {
                texts: Texts::Fresh,
                tokens: 100,
                beside: Some(128_000),
                ..slow(&Scenario { workers: 4, ..a })
            },
        )],
        "connections" => [1, 32, 256]
            .map(|connections| {
                called(&format!("A, {connections} connections"), Scenario { connections, ..a.clone() })
            })
            .into(),
        "lengths" => [100, 3500, 32_000, 128_000]
            .map(|tokens| {
                let requests = per(tokens, 6_000_000).min(3000);
                called(&format!("A, {tokens} tokens"), Scenario { tokens, requests, ..a.clone() })
            })
            .into(),
        "rates" => [20.0, 100.0, 500.0, 2000.0]
            .map(|rate| {
                let requests = (rate * 4.0) as usize;
                called(&format!("A, {rate} a second"), Scenario { rate: Some(rate), requests, ..a.clone() })
            })
            .into(),
        "workers" => [1, 8, 64, 256]
            .map(|workers| called(&format!("A, {workers} workers"), Scenario { workers, ..a.clone() }))
            .into(),
        _ => return None,
    })
}
