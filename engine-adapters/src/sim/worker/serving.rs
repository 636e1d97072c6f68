//! Which path does what.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::{BodyExt, LengthLimitError, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{ALLOW, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::answering::{Answer, EngineGone};
use super::driver::{Command, Job};
use super::events::TrtllmQueue;
use super::faults::{Faults, Switches};
use super::generate::{self, Author, Kind, Plan};
use super::http::{Body, Refusal, detail, full, json, ok, respond};
use super::metrics::Dashboard;
use super::options::WorkerOptions;
use super::reply::Reply;
use crate::openai::{GenerateRequest, Prompt};
use crate::vllm::wire::Spelling;

/// Bodies up to this size are tokenized on the spot.
const INLINE_BYTES: usize = 4096;

/// Whom a connection talks to.
pub(super) struct Serving {
    pub(super) options: WorkerOptions,
    pub(super) author: Arc<Author>,
    pub(super) model_name: String,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) dashboard: Arc<Dashboard>,
    pub(super) switches: Arc<Switches>,
    pub(super) trtllm: Arc<Mutex<TrtllmQueue>>,
    /// What `/kv_event_sources` says.
    pub(super) sources: Value,
    /// When it started, by both clocks.
    pub(super) started: (Duration, Instant),
    pub(super) stop: CancellationToken,
}

/// An answer is refused politely, or the engine is gone and the connection with it.
pub(super) enum Failure {
    Refused(Refusal),
    Gone,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Serving {
    pub(super) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, EngineGone> {
        let request_id =
            header(request.headers(), "x-request-id").map_or_else(|| hex(rand::random()), str::to_owned);
        let mut response = match self.route(request, &request_id).await {
            Ok(response) => response,
            Err(Failure::Refused(refusal)) => refusal.respond(),
            Err(Failure::Gone) => return Err(EngineGone),
        };
        let headers = response.headers_mut();
        headers.insert(hyper::header::SERVER, HeaderValue::from_static("kvlane-worker"));
        if let Ok(id) = HeaderValue::from_str(&request_id) {
            headers.insert(HeaderName::from_static("x-request-id"), id);
        }
        Ok(response)
    }

    async fn route(
        self: Arc<Self>,
        request: Request<Incoming>,
        request_id: &str,
    ) -> Result<Response<Body>, Failure> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path();
        // As vLLM: everything but its API is open to anybody.
        if let Some(key) = &self.options.api_key
            && path.starts_with("/v1")
            && header(&parts.headers, "authorization") != Some(&format!("Bearer {key}"))
        {
            return Ok(json(StatusCode::UNAUTHORIZED, &json!({"error": "Unauthorized"})));
        }
        let allowed = match path {
            "/health"
            | "/ping"
            | "/version"
            | "/v1/models"
            | "/load"
            | "/metrics"
            | "/prometheus/metrics"
            | "/kv_event_sources" => Method::GET,
            "/v1/chat/completions"
            | "/v1/completions"
            | "/tokenize"
            | "/detokenize"
            | "/reset_prefix_cache"
            | "/kv_cache_events" => Method::POST,
            "/faults" if self.options.fault_switches && parts.method == Method::GET => Method::GET,
            "/faults" | "/faults/die" | "/faults/restart" if self.options.fault_switches => Method::POST,
            _ => return Ok(detail(StatusCode::NOT_FOUND, "Not Found")),
        };
        if parts.method != allowed {
            let mut response = detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
            if let Ok(allowed) = HeaderValue::from_str(allowed.as_str()) {
                response.headers_mut().insert(ALLOW, allowed);
            }
            return Ok(response);
        }
        let body = self.read(body).await?;
        match path {
            "/health" | "/ping" => Ok(Response::new(full(Bytes::new()))),
            "/version" => Ok(ok(&json!({"version": self.version()}))),
            "/v1/models" => Ok(ok(&self.models())),
            "/load" => Ok(ok(&json!({"server_load": 0}))),
            "/metrics" | "/prometheus/metrics" => Ok(respond(
                StatusCode::OK,
                "text/plain; version=0.0.4; charset=utf-8",
                full(self.dashboard.current().text()),
            )),
            "/kv_event_sources" => Ok(ok(&self.sources)),
            "/v1/chat/completions" => self.generate(Kind::Chat, &parts.headers, &body, request_id).await,
            "/v1/completions" => self.generate(Kind::Completion, &parts.headers, &body, request_id).await,
            // Texts of any length, so not on a thread that serves others.
            "/tokenize" => blocking(move || self.tokenize(&body)).await,
            "/detokenize" => self.detokenize(&body),
            "/kv_cache_events" => match self.trtllm.lock().drain() {
                Some(events) => Ok(ok(&events)),
                None => Ok(detail(StatusCode::NOT_FOUND, "Not Found")),
            },
            "/reset_prefix_cache" => {
                self.command(Command::Reset).await?;
                Ok(Response::new(full(Bytes::new())))
            }
            "/faults/die" => {
                tracing::warn!(worker = self.options.name, "killed by a fault switch");
                self.stop.cancel();
                Err(Failure::Gone)
            }
            "/faults/restart" => {
                self.command(Command::Restart).await?;
                Ok(ok(&json!({"restarted": true})))
            }
            _ if parts.method == Method::GET => Ok(ok(&self.switches.get())),
            _ => self.switch(&body),
        }
    }

    /// Seconds since 1970.
    fn now(&self) -> i64 {
        let (wall, clock) = self.started;
        (wall + clock.elapsed()).as_secs() as i64
    }

    async fn read(&self, body: Incoming) -> Result<Bytes, Failure> {
        match Limited::new(body, self.options.max_body_bytes).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => {
                Err(Refusal::too_large(self.options.max_body_bytes).into())
            }
            Err(_) => Err(Failure::Gone),
        }
    }

    /// Replaces all switches by what the body says; an empty body switches everything off.
    fn switch(&self, body: &[u8]) -> Result<Response<Body>, Failure> {
        let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
        let faults: Faults = parse(body)?;
        faults.validate().map_err(|error| Refusal::bad_request(Some(error.field), error.to_string()))?;
        tracing::warn!(worker = self.options.name, ?faults, "fault switches set");
        self.switches.set(faults.clone());
        Ok(ok(&faults))
    }

    /// The version whose dialect is spoken, marked as not the real thing.
    fn version(&self) -> &'static str {
        match self.options.events.encoder.spelling {
            Spelling::Maps => "0.32.0+kvlane.simulated",
            Spelling::Arrays => "0.23.0+kvlane.simulated",
        }
    }

    fn served(&self) -> Vec<&str> {
        let adapters = self.options.lora_names.iter().map(String::as_str);
        std::iter::once(self.model_name.as_str()).chain(adapters).collect()
    }

    fn models(&self) -> Value {
        let root =
            self.options.model_path.as_ref().map_or(self.model_name.clone(), |dir| dir.display().to_string());
        let model = |id: &str| {
            let adapter = id != self.model_name;
            json!({
                "id": id,
                "object": "model",
                "created": self.started.0.as_secs(),
                "owned_by": "kvlane-worker",
                "root": if adapter { id } else { root.as_str() },
                "parent": adapter.then_some(&self.model_name),
                "max_model_len": (!adapter).then_some(self.author.max_len),
                "permission": [{
                    "id": format!("modelperm-{:016x}", xxhash_rust::xxh3::xxh3_64(id.as_bytes())),
                    "object": "model_permission",
                    "created": self.started.0.as_secs(),
                    "allow_create_engine": false,
                    "allow_sampling": true,
                    "allow_logprobs": true,
                    "allow_search_indices": false,
                    "allow_view": true,
                    "allow_fine_tuning": false,
                    "organization": "*",
                    "group": null,
                    "is_blocking": false,
                }],
            })
        };
        json!({"object": "list", "data": self.served().into_iter().map(model).collect::<Vec<_>>()})
    }

    fn tokenize(&self, body: &[u8]) -> Result<Response<Body>, Failure> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Strings {
            return_token_strs: bool,
        }
        let request: GenerateRequest = parse(body)?;
        let strings: Strings = parse(body)?;
        self.check_model(&request)?;
        let tokens = match &request.prompt {
            Some(Prompt::Text(text)) => {
                self.author.encode(text, request.add_special_tokens.unwrap_or(true))?
            }
            Some(_) => {
                return Err(Refusal::invalid_body(
                    "body.prompt",
                    "string_type",
                    "Input should be a valid string",
                )
                .into());
            }
            None => self.author.chat_prompt(&request, self.now())?,
        };
        let names = strings.return_token_strs.then(|| {
            tokens
                .iter()
                .map(|id| self.author.model.tokenizer.token(*id).unwrap_or_default())
                .collect::<Vec<_>>()
        });
        Ok(ok(&json!({
            "count": tokens.len(),
            "max_model_len": self.author.max_len,
            "tokens": tokens,
            "token_strs": names,
        })))
    }

    fn detokenize(&self, body: &[u8]) -> Result<Response<Body>, Failure> {
        #[derive(Deserialize)]
        struct Tokens {
            tokens: Vec<u32>,
        }
        let Tokens { tokens } = parse(body)?;
        let tokens = self.author.known(tokens)?;
        let text = self.author.model.tokenizer.decode(&tokens);
        let text = text.map_err(|error| Refusal::bad_request(Some("tokens"), error.to_string()))?;
        Ok(ok(&json!({"prompt": text})))
    }

    /// The adapter a request names, when it names one.
    fn check_model(&self, request: &GenerateRequest) -> Result<Option<String>, Refusal> {
        match request.model.as_deref() {
            None => Ok(None),
            Some(model) if model == self.model_name => Ok(None),
            Some(model) if self.options.lora_names.iter().any(|name| name == model) => {
                Ok(Some(model.to_owned()))
            }
            Some(model) => Err(Refusal::no_such_model(model, &self.served())),
        }
    }

    async fn command(&self, command: impl FnOnce(oneshot::Sender<()>) -> Command) -> Result<(), Failure> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| Failure::Gone)?;
        answer.await.map_err(|_| Failure::Gone)
    }

    /// Long prompts are tokenized where they hold nobody up.
    async fn plan(
        self: Arc<Self>,
        kind: Kind,
        request: GenerateRequest,
        body_bytes: usize,
    ) -> Result<(Vec<Plan>, GenerateRequest), Failure> {
        let short = body_bytes <= INLINE_BYTES && request.n.unwrap_or(1) <= 1;
        let plan = move || {
            let plans = self.author.plan(kind, &request, &self.options, self.now());
            plans.map(|plans| (plans, request))
        };
        if short {
            return plan().map_err(Failure::Refused);
        }
        blocking(move || plan().map_err(Failure::Refused)).await
    }

    async fn generate(
        self: Arc<Self>,
        kind: Kind,
        headers: &HeaderMap,
        body: &[u8],
        request_id: &str,
    ) -> Result<Response<Body>, Failure> {
        let request: GenerateRequest = parse(body)?;
        let lora_name = self.check_model(&request)?;
        if let Some(rank) = header(headers, "x-data-parallel-rank")
            && rank != "0"
        {
            let message = format!("data_parallel_rank {rank} is out of range [0, 1).");
            return Err(Refusal::bad_request(None, message).into());
        }
        let faults = self.switches.get();
        if let Some(status) = faults.status {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            return Err(Refusal::switched_on(status).into());
        }
        let (plans, request) = self.clone().plan(kind, request, body.len()).await?;
        let priority = header(headers, "x-vllm-priority").and_then(|priority| priority.parse().ok());
        let session_id =
            header(headers, "x-session-id").map(str::to_owned).or_else(|| request.session_id.clone());
        let mut readers = Vec::with_capacity(plans.len());
        for plan in &plans {
            let job = Job {
                tokens: plan
                    .prompt
                    .iter()
                    .copied()
                    .chain(plan.answer.iter().map(|piece| piece.token))
                    .collect(),
                prompt_tokens: plan.prompt.len(),
                lora_name: lora_name.clone(),
                cache_salt: request.cache_salt.clone(),
                session_id: session_id.clone(),
                // vLLM's lower value goes first, the engine's higher.
                priority: priority.or(request.priority).unwrap_or(0).saturating_neg(),
                reason: if plan.finish == "length" { "length" } else { "stop" },
            };
            let (reply, answer) = oneshot::channel();
            self.commands.send(Command::Submit(job, reply)).await.map_err(|_| Failure::Gone)?;
            let reader = answer.await.map_err(|_| Failure::Gone)?;
            readers.push(reader.map_err(|error| Refusal::bad_request(None, error.to_string()))?);
        }
        let prefix = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
        let own = request.request_id.clone();
        let options = request.stream_options.unwrap_or_default();
        let reply = Reply {
            kind,
            id: format!("{prefix}-{}", own.as_deref().unwrap_or(request_id)),
            created: self.now(),
            model: request.model.clone().unwrap_or_else(|| self.model_name.clone()),
            return_token_ids: request.return_token_ids.unwrap_or(false),
            logprobs: generate::logprobs(&request),
            continuous_usage: options.include_usage == Some(true)
                && options.continuous_usage_stats == Some(true),
        };
        let answer = Answer {
            author: self.author.clone(),
            block_tokens: self.options.calibration.block_tokens,
            reply,
            plans,
        };
        if !request.streams() {
            return answer.whole(readers).await.map_err(|EngineGone| Failure::Gone);
        }
        let stream =
            answer.stream(readers, options.include_usage.unwrap_or(false), faults.close_after_chunks);
        let body = StreamBody::new(stream.map(|chunk| chunk.map(Frame::data))).boxed_unsync();
        Ok(respond(StatusCode::OK, "text/event-stream; charset=utf-8", body))
    }
}

/// Work that would hold others up.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Failure::Gone)?
}

fn header<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

fn hex(id: u64) -> String {
    format!("{id:016x}")
}

/// A body as JSON, or where it is not.
fn parse<T: for<'de> Deserialize<'de>>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| {
        let at = format!("body.{}", error.column().saturating_sub(1));
        let kind = match error.classify() {
            serde_json::error::Category::Data => "value_error",
            _ => "json_invalid",
        };
        Refusal::invalid_body(&at, kind, &error.to_string())
    })
}
