//! Why requests went where they went: our router's decisions, joined by request id. Other routers have none, and nothing
//! here is needed then.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::http::{Admin, Http};
use crate::measure::Measured;

/// Where they are looked up.
#[derive(Clone, Debug)]
pub struct Decisions {
    http: Http,
    admin: String,
}

/// A decision as the router remembers it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    pub worker: String,
    pub mode: String,
    /// Prompt tokens that the router believed the worker had.
    pub held_tokens: u64,
    /// Of all workers that could have been chosen.
    pub best_held_tokens: u64,
    pub cost: f64,
    /// What the next best would have cost.
    pub runner_up: Option<f64>,
    pub candidates: usize,
    /// Its terms for the best workers and those that could not be chosen, to be shown; not written down.
    #[serde(skip)]
    pub explained: Arc<Value>,
}

/// What the router believed, beside what engines reported.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DecisionsReport {
    pub joined: u64,
    /// Requests whose decision was not found.
    pub missed: u64,
    /// Of requests whose cached tokens the engine told: believed and reported, in tokens.
    pub believed_tokens: u64,
    pub reported_tokens: u64,
    /// Requests for which the belief was more than a hundredth of the prompt above what was reported.
    pub over_believed: u64,
    /// Requests that went to the worker that had most of the prompt.
    pub to_the_warmest: u64,
}

const PATIENCE: Duration = Duration::from_secs(2);
const MOST_BYTES: usize = 1 << 20;
/// Workers whose terms are kept.
const MOST_SHOWN: usize = 8;

impl Decisions {
    /// By whom they are told.
    pub fn new(admin: impl Into<Admin>) -> anyhow::Result<Self> {
        let admin: Admin = admin.into();
        Ok(Self { http: admin.http(PATIENCE)?, admin: admin.url })
    }

    /// None when it is not remembered, or nobody answers.
    pub(super) async fn of(&self, request_id: &str) -> Option<Decision> {
        let url = format!("{}/admin/explain/{request_id}", self.admin);
        let answer = self.http.get(&url, MOST_BYTES).await.ok()?;
        Decision::read(&serde_json::from_slice(&answer).ok()?)
    }
}

impl Decision {
    fn read(explained: &Value) -> Option<Self> {
        let block_tokens = explained["block_size"].as_u64()?;
        let candidates = explained["candidates"].as_array()?;
        let held = |of: &Value| of["held_blocks"].as_u64().unwrap_or(0) * block_tokens;
        let chosen = &explained["chosen"];
        let worker = chosen["worker"].as_str().map_or_else(|| chosen["id"].to_string(), str::to_owned);
        Some(Self {
            worker,
            mode: explained["mode"].as_str()?.to_owned(),
            held_tokens: held(chosen),
            best_held_tokens: candidates.iter().map(held).max().unwrap_or(0),
            cost: chosen["cost"].as_f64()?,
            runner_up: candidates.get(1).and_then(|next| next["cost"].as_f64()),
            candidates: candidates.len(),
            explained: Arc::new(json!({
                "mode": explained["mode"],
                "block_size": block_tokens,
                "blocks": explained["blocks"],
                "chosen": 0,
                "candidates": candidates.iter().take(MOST_SHOWN).collect::<Vec<_>>(),
                "barred": explained["barred"].as_array().map(|barred| barred.iter().take(MOST_SHOWN).collect::<Vec<_>>()),
            })),
        })
    }
}

impl DecisionsReport {
    pub(super) fn add(&mut self, decision: Option<&Decision>, measured: &Measured) {
        let Some(decision) = decision else {
            self.missed += 1;
            return;
        };
        self.joined += 1;
        self.to_the_warmest += u64::from(decision.held_tokens == decision.best_held_tokens);
        let (Some(prompt), Some(cached)) = (measured.prompt_tokens, measured.cached_tokens) else { return };
        self.believed_tokens += decision.held_tokens.min(prompt);
        self.reported_tokens += cached;
        self.over_believed += u64::from(decision.held_tokens.min(prompt) > cached + prompt / 100);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Decision {
        pub(in crate::live) fn sample() -> Self {
            let chosen = json!({"worker": "a", "held_blocks": 10, "cost": 4.5});
            let explained = json!({"mode": "kv", "block_size": 32, "blocks": 12, "chosen": chosen, "candidates": [chosen]});
            Self::read(&explained).unwrap()
        }
    }

    #[test]
    fn a_decision_is_read_from_what_the_router_explains() {
        let explained = json!({
            "mode": "kv", "block_size": 32,
            "chosen": {"worker": "a", "held_blocks": 10, "cost": 4.5},
            "candidates": [{"held_blocks": 10, "cost": 4.5}, {"held_blocks": 12, "cost": 9.0}],
        });
        let decision = Decision::read(&explained).unwrap();
        assert_eq!((decision.held_tokens, decision.best_held_tokens), (320, 384));
        assert_eq!((decision.runner_up, decision.candidates), (Some(9.0), 2));
        assert_eq!(Decision::read(&json!({"error": "no"})), None);
    }
}
