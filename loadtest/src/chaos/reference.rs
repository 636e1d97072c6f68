//! What whole answers are: an engine in this process that nobody kills, and that takes no time. Simulated engines say the
//! same to the same prompt, whichever of them is asked.

use std::time::Duration;

use anyhow::Context;
use kvlane_engine_adapters::process::since_1970;
use kvlane_engine_adapters::sim::Calibration;
use kvlane_engine_adapters::sim::worker::{Worker, WorkerOptions};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::http::Http;

#[derive(Debug)]
pub struct Reference {
    worker: Worker,
    http: Http,
}

const PATIENCE: Duration = Duration::from_secs(20);

impl Reference {
    /// `answer_tokens` has to be what the others have.
    pub async fn start((few, many): (usize, usize)) -> anyhow::Result<Self> {
        let calibration = Calibration::preset("instant")?;
        let options = WorkerOptions { answer_tokens: few..=many, ..WorkerOptions::new(calibration) };
        let worker = Worker::start(options, since_1970(), CancellationToken::new()).await?;
        Ok(Self { worker, http: Http::new(PATIENCE)? })
    }

    /// The whole answer to a request; `body` is what was asked, streamed or not.
    pub async fn answer(&self, body: &Value) -> anyhow::Result<String> {
        let mut body = body.clone();
        if let Some(body) = body.as_object_mut() {
            body.remove("stream");
            body.remove("stream_options");
        }
        let url = format!("http://{}/v1/chat/completions", self.worker.address());
        let answer: Value = serde_json::from_slice(&self.http.post(&url, &body).await?)?;
        let text = answer["choices"][0]["message"]["content"].as_str();
        text.map(str::to_owned).context("the reference has no answer")
    }
}
