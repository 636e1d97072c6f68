//! Our router's administration, asked on behalf of a page that cannot reach it.

use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};

use crate::http::{Admin, Http, Refused};

#[derive(Clone, Debug)]
pub struct Administration {
    http: Http,
    admin: Admin,
}

/// Emptying caches may wait for engines.
const PATIENCE: Duration = Duration::from_secs(10);
const MOST_BYTES: usize = 8 << 20;

impl Administration {
    pub fn new(admin: impl Into<Admin>) -> anyhow::Result<Self> {
        let admin: Admin = admin.into();
        Ok(Self { http: admin.http(PATIENCE)?, admin })
    }

    pub(super) fn admin(&self) -> &Admin {
        &self.admin
    }

    async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let answer = self.http.get(&format!("{}{path}", self.admin.url), MOST_BYTES).await;
        serde_json::from_slice(&answer.map_err(|error| told(&error))?).with_context(|| path.to_owned())
    }

    async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let answer = self.http.post(&format!("{}{path}", self.admin.url), body).await;
        serde_json::from_slice(&answer.map_err(|error| told(&error))?).with_context(|| path.to_owned())
    }

    pub(super) async fn mode(&self) -> anyhow::Result<Value> {
        self.get("/admin/mode").await
    }

    pub(super) async fn set_mode(&self, mode: &str, reset: bool) -> anyhow::Result<Value> {
        self.post("/admin/mode", &json!({"mode": mode, "reset": reset})).await
    }

    pub(super) async fn workers(&self) -> anyhow::Result<Value> {
        self.get("/admin/workers").await
    }

    /// Where a prompt would go now, and why.
    pub(super) async fn explain(&self, prompt: &str) -> anyhow::Result<Value> {
        self.post("/admin/explain", &question(prompt)).await
    }

    /// The names of a prompt's blocks.
    pub(super) async fn blocks(&self, prompt: &str) -> anyhow::Result<Vec<String>> {
        let answer = self.post("/admin/explain?hashes=true", &question(prompt)).await?;
        serde_json::from_value(answer["block_hashes"].clone()).context("block_hashes")
    }

    pub(super) async fn index(&self) -> anyhow::Result<Value> {
        self.get("/admin/index").await
    }

    /// The largest branches of what is cached where.
    pub(super) async fn tree(&self) -> anyhow::Result<Value> {
        self.get("/admin/tree").await
    }

    pub(super) async fn metrics(&self) -> anyhow::Result<String> {
        let answer = self.http.get(&format!("{}/metrics", self.admin.url), MOST_BYTES).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

/// The router's own sentence. Where it is reached is nobody's business who looks at a page.
fn told(error: &anyhow::Error) -> anyhow::Error {
    let Some(refused) = error.downcast_ref::<Refused>() else {
        return anyhow::anyhow!("the router's administration does not answer");
    };
    let body: Value = serde_json::from_str(&refused.body).unwrap_or_default();
    match body["error"]["message"].as_str() {
        Some(message) => anyhow::anyhow!("{message}"),
        None => anyhow::anyhow!("the router's administration answered {}", refused.status),
    }
}

fn question(prompt: &str) -> Value {
    json!({"messages": [{"role": "user", "content": prompt}]})
}
