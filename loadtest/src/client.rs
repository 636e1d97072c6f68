//! One OpenAI-compatible endpoint, asked for streamed answers. Nothing here knows whose it is; what our router adds
//! (the worker it chose) is taken along where it is there.

pub(crate) mod events;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, Uri};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

#[cfg(fuzzing)]
pub use self::events::read_pieces;
use self::events::{Event, Events};
use crate::corpus::own_text;
use crate::http::{Connections, connections};
use crate::measure::{ErrorClass, Measured, Stopwatch};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    pub role: Role,
    pub content: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    System,
    User,
    Assistant,
}

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    pub messages: &'a [Message],
    pub max_tokens: usize,
    /// What the conversation is called, sent along when the endpoint may know it.
    pub session: Option<&'a str>,
    pub request_id: &'a str,
    /// When it should have been sent.
    pub due: Instant,
    /// Set with the first token, for those who look from outside.
    pub begun: Option<&'a AtomicBool>,
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Answer {
    pub measured: Measured,
    pub text: String,
    /// Who answered, where the endpoint tells.
    pub worker: Option<String>,
    /// What was wrong, for people.
    pub complaint: Option<String>,
}

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub connect: Duration,
    /// Until the answer begins, and between two parts of it.
    pub silence: Duration,
    /// All of it.
    pub whole: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { connect: seconds(5), silence: seconds(120), whole: seconds(600) }
    }
}

#[derive(Clone, Debug)]
pub struct Endpoint {
    client: Connections,
    base: String,
    authorization: Option<HeaderValue>,
    pub model: String,
    /// Laid over every request's body.
    pub extra: Map<String, Value>,
    /// The header in which a router says who answered.
    pub worker_header: HeaderName,
    patience: Patience,
}

/// In which our router says whom it chose.
const WORKER_HEADER: HeaderName = HeaderName::from_static("x-kvlane-worker");
/// How long the end of a body may take after the end of its answer.
const LAST_BYTES: Duration = Duration::from_millis(50);
/// Longer complaints are cut.
const SHOWN: usize = 300;
/// A longer error, or list of models, is not read.
const MOST_ERROR: usize = 1 << 20;

impl Endpoint {
    /// `base` is with or without `/v1`.
    pub fn new(base: &str, model: &str, key: Option<&str>, patience: Patience) -> anyhow::Result<Self> {
        let uri: Uri = base.parse().with_context(|| format!("endpoint {base:?}"))?;
        ensure!(
            matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some(),
            "endpoint is {base:?}, expected http://HOST:PORT or https://HOST"
        );
        let base = base.trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base).to_owned();
        let authorization = key
            .map(|key| {
                let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
                    .context("the key has characters that do not go into a header")?;
                value.set_sensitive(true);
                anyhow::Ok(value)
            })
            .transpose()?;
        let client = connections(patience.connect)?;
        let (model, extra) = (model.to_owned(), Map::new());
        Ok(Self { client, base, authorization, model, extra, worker_header: WORKER_HEADER, patience })
    }

    /// The first model the endpoint lists.
    pub async fn first_model(&self) -> anyhow::Result<String> {
        let url = format!("{}/v1/models", self.base);
        let request = self.request(Method::GET, &url, Bytes::new())?;
        let asked = async {
            let response = self.client.request(request).await.with_context(|| url.clone())?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MOST_ERROR).collect().await;
            let body = body.map_err(|error| anyhow::anyhow!("{url}: {error}"))?.to_bytes();
            ensure!(status.is_success(), "{url}: status {}", status.as_u16());
            let list: Value = serde_json::from_slice(&body).with_context(|| url.clone())?;
            let first = list["data"][0]["id"].as_str();
            first.map(str::to_owned).with_context(|| format!("{url}: it lists no model"))
        };
        let late = || format!("{url}: no answer within {:?}", self.patience.connect);
        tokio::time::timeout(self.patience.connect, asked).await.with_context(late)?
    }

    /// Tokens the endpoint's model makes of a word of ours: from two prompts, so that its template does not count.
    /// None where it does not tell.
    pub async fn tokens_per_word(&self) -> Option<f64> {
        let (short, long) = (own_text(1, 50), own_text(1, 450));
        let words = |text: &str| text.split_whitespace().count() as f64;
        let (few, many) = (self.count(&short).await?, self.count(&long).await?);
        let found = (many as f64 - few as f64) / (words(&long) - words(&short));
        (0.3..30.0).contains(&found).then_some(found)
    }

    /// Tokens of a prompt, as the endpoint counts them.
    async fn count(&self, text: &str) -> Option<u64> {
        let messages = [Message { role: Role::User, content: text.to_owned() }];
        let question = Question {
            messages: &messages,
            max_tokens: 1,
            session: None,
            request_id: "kvlane-load-count",
            due: Instant::now(),
            begun: None,
        };
        self.ask(&question).await.measured.prompt_tokens
    }

    fn request(&self, method: Method, url: &str, body: Bytes) -> anyhow::Result<Request<Full<Bytes>>> {
        let mut request = Request::builder().method(method).uri(url).header(CONTENT_TYPE, "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.body(Full::new(body)).with_context(|| url.to_owned())
    }

    /// Asks, and reads the answer to its end. Never fails: what goes wrong is part of what is measured.
    pub async fn ask(&self, question: &Question<'_>) -> Answer {
        let watch = Stopwatch::start(question.due, Instant::now());
        let mut reading =
            Reading { watch, text: String::new(), worker: None, usage: None, finished: false, chunks: 0 };
        let asked = tokio::time::timeout(self.patience.whole, self.read(question, &mut reading)).await;
        let failed = match asked {
            Ok(Ok(())) => None,
            Ok(Err(failed)) => Some(failed),
            Err(_) => {
                Some(Failed::new(ErrorClass::Timeout, format!("not over within {:?}", self.patience.whole)))
            }
        };
        reading.answer(failed)
    }

    async fn read(&self, question: &Question<'_>, reading: &mut Reading) -> Result<(), Failed> {
        let mut body = json!({
            "model": self.model,
            "messages": question.messages,
            "max_tokens": question.max_tokens,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        if let Some(body) = body.as_object_mut() {
            body.extend(self.extra.clone());
        }
        let url = format!("{}/v1/chat/completions", self.base);
        let unsendable = |error: anyhow::Error| Failed::new(ErrorClass::Connect, format!("{error:#}"));
        let mut request = self.request(Method::POST, &url, body.to_string().into()).map_err(unsendable)?;
        for (name, value) in [("x-request-id", Some(question.request_id)), ("x-session-id", question.session)]
        {
            if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
                request.headers_mut().insert(name, value);
            }
        }
        let silence = |_| Failed::new(ErrorClass::Timeout, format!("silent for {:?}", self.patience.silence));
        let sent = tokio::time::timeout(self.patience.silence, self.client.request(request)).await;
        let response = sent.map_err(silence)?.map_err(|error| {
            let class = if error.is_connect() { ErrorClass::Connect } else { ErrorClass::BrokenOff };
            Failed::new(class, causes(&error))
        })?;
        let worker = response.headers().get(&self.worker_header);
        reading.worker = worker.and_then(|id| id.to_str().ok()).map(str::to_owned);
        if !response.status().is_success() {
            return Err(refused(response, self.patience.silence).await);
        }
        let kind =
            response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.is_empty() && !kind.starts_with("text/event-stream") {
            let what = format!("the answer is {kind}, expected a stream of events (text/event-stream)");
            return Err(Failed::new(ErrorClass::Malformed, what));
        }
        let mut body = response.into_body();
        let mut events = Events::default();
        loop {
            let frame = tokio::time::timeout(self.patience.silence, body.frame()).await.map_err(silence)?;
            // Stamped before it is read.
            let now = Instant::now();
            let malformed = |what: String| Failed::new(ErrorClass::Malformed, what);
            let Some(frame) = frame else {
                let over = reading.take(events.end().map_err(malformed)?, now, question.max_tokens)?;
                if over || reading.finished {
                    return Ok(());
                }
                return Err(Failed::new(ErrorClass::BrokenOff, "the stream ended before [DONE]".to_owned()));
            };
            let frame = frame.map_err(|error| Failed::new(ErrorClass::BrokenOff, causes(&error)))?;
            let Ok(data) = frame.into_data() else { continue };
            if reading.take(events.read(&data).map_err(malformed)?, now, question.max_tokens)? {
                // To its very end, or the connection could not be used again. The times are taken.
                let rest = async { while let Some(Ok(_)) = body.frame().await {} };
                let _ = tokio::time::timeout(LAST_BYTES, rest).await;
                return Ok(());
            }
            if let Some(begun) = question.begun.filter(|_| reading.watch.has_begun()) {
                begun.store(true, Ordering::Relaxed);
            }
        }
    }
}

struct Reading {
    watch: Stopwatch,
    text: String,
    worker: Option<String>,
    usage: Option<events::Usage>,
    finished: bool,
    chunks: usize,
}

impl Reading {
    /// True when that was all.
    fn take(&mut self, events: Vec<Event>, now: Instant, max_tokens: usize) -> Result<bool, Failed> {
        for event in events {
            match event {
                Event::Done => return Ok(true),
                Event::Chunk { text, reasoning, finished, usage } => {
                    if reasoning || !text.is_empty() {
                        self.watch.tokens(1, now);
                        self.text.push_str(&text);
                        self.chunks += 1;
                    }
                    self.finished |= finished;
                    self.usage = usage.or(self.usage);
                }
                Event::Error { message, .. } => return Err(Failed::new(ErrorClass::BrokenOff, message)),
            }
        }
        // Nobody's token is so long, nor cut into so many pieces.
        if self.chunks > 8 * max_tokens + 1000 || self.text.len() > 64 * max_tokens + (1 << 16) {
            let what = format!("the answer goes on past anything {max_tokens} tokens could be");
            return Err(Failed::new(ErrorClass::Malformed, what));
        }
        Ok(false)
    }

    fn answer(self, failed: Option<Failed>) -> Answer {
        let counted = self.usage.and_then(|usage| usage.completion_tokens);
        let mut measured =
            self.watch.finish(Instant::now(), counted, failed.as_ref().map(|failed| failed.class));
        measured.prompt_tokens = self.usage.and_then(|usage| usage.prompt_tokens);
        measured.cached_tokens = self.usage.and_then(|usage| usage.cached_tokens());
        Answer { measured, text: self.text, worker: self.worker, complaint: failed.map(|failed| failed.what) }
    }
}

struct Failed {
    class: ErrorClass,
    what: String,
}

impl Failed {
    fn new(class: ErrorClass, mut what: String) -> Self {
        if let Some((end, _)) = what.char_indices().nth(SHOWN) {
            what.truncate(end);
        }
        Self { class, what }
    }
}

async fn refused(response: Response<hyper::body::Incoming>, silence: Duration) -> Failed {
    let status = response.status().as_u16();
    let reading = Limited::new(response.into_body(), MOST_ERROR).collect();
    // What it is refused with may not come, and is refused all the same.
    let body = match tokio::time::timeout(silence, reading).await {
        Ok(Ok(body)) => body.to_bytes(),
        _ => Bytes::new(),
    };
    let said: Value = serde_json::from_slice(&body).unwrap_or_default();
    let message = said["error"]["message"].as_str().or(said["message"].as_str()).unwrap_or_default();
    Failed::new(ErrorClass::of_status(status), format!("status {status} {message}"))
}

/// An error and what it is due to, in a line.
fn causes(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line = format!("{line}: {error}");
        cause = error.source();
    }
    line
}
