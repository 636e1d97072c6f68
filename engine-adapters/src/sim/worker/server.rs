//! The worker's HTTP side: who listens, which path does what, and how an answer flows back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{io, pin::pin};

use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt};
use http_body_util::{BodyExt, LengthLimitError, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{ALLOW, HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::driver::{Command, Driver, DriverParts, Job, Progress};
use super::events::{Events, TrtllmQueue};
use super::faults::{Faults, Switches};
use super::generate::{self, Author, Kind, Plan};
use super::http::{Body, Refusal, detail, full, json, respond};
use super::metrics::Dashboard;
use super::options::{OptionsError, WorkerOptions};
use super::reply::{self, Reply, Usage};
use crate::model::{Model, ModelError};
use crate::openai::GenerateRequest;
use crate::sim::{Lexicon, LexiconError};
use crate::vllm::publisher::{Endpoint, PublishError};
use crate::vllm::wire::Spelling;

/// Commands on their way to the engine; more wait at their senders.
const COMMANDS: usize = 1024;
/// Bodies up to this size are tokenized on the spot.
const INLINE_BYTES: usize = 4096;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Lexicon(#[from] LexiconError),
    #[error(transparent)]
    Publish(#[from] PublishError),
    #[error("cannot listen on {address}: {error}")]
    Listen { address: SocketAddr, error: io::Error },
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    #[error(
        "model `{model}` does not say how long a prompt may be, expected `max_position_embeddings` in its config.json or --max-model-len"
    )]
    NoLength { model: String },
}

/// Whom a connection talks to.
struct Serving {
    options: WorkerOptions,
    author: Author,
    model_name: String,
    commands: mpsc::Sender<Command>,
    dashboard: Arc<Dashboard>,
    switches: Arc<Switches>,
    trtllm: Arc<Mutex<TrtllmQueue>>,
    /// What `/kv_event_sources` says.
    sources: Value,
    /// When it started, by both clocks.
    started: (Duration, Instant),
    stop: CancellationToken,
}

/// A worker that serves. It ends with its token, or by itself when a fault switch kills it.
#[derive(Debug)]
pub struct Worker {
    address: SocketAddr,
    events: Option<SocketAddr>,
    replay: Option<SocketAddr>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Worker {
    /// Binds everything and begins to serve. `now` is the time since 1970.
    pub async fn start(
        options: WorkerOptions,
        now: Duration,
        stop: CancellationToken,
    ) -> Result<Self, StartError> {
        options.validate()?;
        let block_size = options.block_size()?;
        let model = match &options.model_path {
            Some(dir) => Model::load(dir)?,
            None => Model::embedded()?,
        };
        let lexicon = Lexicon::new(&model)?;
        let max_len = options.max_model_len.or(model.max_len);
        let max_len = max_len.ok_or_else(|| StartError::NoLength { model: model.name.clone() })?;
        let model_name = options.model_name.clone().unwrap_or_else(|| model.name.clone());
        let calibration = options.calibration.clone();

        let listen = |error| StartError::Listen { address: options.address, error };
        let listener = TcpListener::bind(options.address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let (block_tokens, kv_blocks) = (calibration.block_tokens, calibration.kv_blocks);
        let events = Events::start(options.events.clone(), block_tokens, kv_blocks, options.seed).await?;
        let started_s = now.as_secs_f64();
        let dashboard = Arc::new(Dashboard::new(&model_name, &options.name, &calibration, started_s)?);
        let switches = Arc::new(Switches::new());
        let (commands, receiver) = mpsc::channel(COMMANDS);
        let stop = stop.child_token();
        let serving = Arc::new(Serving {
            author: Author { model, lexicon, max_len },
            commands,
            dashboard: dashboard.clone(),
            switches: switches.clone(),
            trtllm: events.trtllm(),
            sources: event_sources(&options, &events),
            started: (now, Instant::now()),
            stop: stop.clone(),
            model_name,
            options,
        });
        let (published, replay) = match events.publisher() {
            Some(publisher) => (publisher.address(), publisher.replay_address()),
            None => (None, None),
        };
        let driver = Driver::new(DriverParts {
            calibration,
            block_size,
            seed: serving.options.seed,
            speed: serving.options.speed,
            started_s,
            events,
            dashboard,
            switches,
        });
        let tasks = TaskTracker::new();
        let until = stop.clone();
        tasks.spawn(async move { until.run_until_cancelled(driver.run(receiver)).await });
        tasks.spawn(accept(listener, serving, stop.clone(), tasks.clone()));
        tasks.close();
        Ok(Self { address, events: published, replay, tasks, stop })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where KV events are published, when bound.
    pub fn events_address(&self) -> Option<SocketAddr> {
        self.events
    }

    pub fn replay_address(&self) -> Option<SocketAddr> {
        self.replay
    }

    /// Until it has stopped, its connections closed.
    pub async fn stopped(&self) {
        self.tasks.wait().await;
    }

    /// Stops it: every connection is closed at once, as if the process had died.
    pub fn kill(&self) {
        self.stop.cancel();
    }
}

/// As vLLM answers: per data-parallel rank, where to subscribe.
fn event_sources(options: &WorkerOptions, events: &Events) -> Value {
    let Some(config) = &options.events.publish else { return json!({}) };
    let any = |address: SocketAddr| format!("tcp://*:{}", address.port());
    let publisher = events.publisher();
    let endpoint = match &config.endpoint {
        Endpoint::Bind(address) => {
            any(publisher.and_then(|publisher| publisher.address()).unwrap_or(*address))
        }
        Endpoint::Connect(endpoint) => endpoint.clone(),
    };
    json!({options.events.encoder.data_parallel_rank.to_string(): {
        "enable_kv_cache_events": true,
        "publisher": "zmq",
        "endpoint": endpoint,
        "replay_endpoint": publisher.and_then(|publisher| publisher.replay_address()).map(any),
        "buffer_steps": config.buffer_steps,
        "hwm": 100_000,
        "max_queue_size": 100_000,
        "topic": config.topic,
    }})
}

async fn accept(listener: TcpListener, serving: Arc<Serving>, stop: CancellationToken, tasks: TaskTracker) {
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let serving = serving.clone();
                let stop = stop.clone();
                tasks.spawn(async move {
                    // Dropping the connection's future closes it, whatever it was doing.
                    stop.run_until_cancelled(connection(stream, serving)).await
                });
            }
            Err(error) => {
                tracing::warn!(%error, "connection not accepted");
                // Out of file descriptors, most likely; some will be free soon.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, serving: Arc<Serving>) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let service = service_fn(move |request| {
        let serving = serving.clone();
        async move { serving.answer(request).await }
    });
    let server = auto::Builder::new(TokioExecutor::new());
    if let Err(error) = pin!(server.serve_connection(TokioIo::new(stream), service)).await {
        tracing::debug!(%error, "connection ended early");
    }
}

/// Why a connection ends without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the engine is gone")]
struct EngineGone;

/// An answer is refused politely, or the engine is gone and the connection with it.
enum Failure {
    Refused(Refusal),
    Gone,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Serving {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, EngineGone> {
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
            Some(crate::openai::Prompt::Text(text)) => {
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
                priority: priority.unwrap_or(request.priority).saturating_neg(),
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
        let answer = Answer { serving: self, reply, plans };
        if !request.streams() {
            return answer.whole(readers).await;
        }
        let stream =
            answer.stream(readers, options.include_usage.unwrap_or(false), faults.close_after_chunks);
        let body = StreamBody::new(stream.map(|chunk| chunk.map(Frame::data))).boxed_unsync();
        Ok(respond(StatusCode::OK, "text/event-stream; charset=utf-8", body))
    }
}

/// A reply under way.
struct Answer {
    serving: Arc<Serving>,
    reply: Reply,
    plans: Vec<Plan>,
}

impl Answer {
    /// What one choice cost. Choices of one prompt share it, and its first one counts it.
    fn usage(&self, plan: &Plan, cached_tokens: usize) -> Usage {
        let completion_tokens = plan.answer.len();
        if plan.choice > 0 {
            return Usage { completion_tokens, ..Usage::default() };
        }
        let block_tokens = self.serving.options.calibration.block_tokens;
        let full = plan.prompt.len() / block_tokens * block_tokens;
        Usage {
            prompt_tokens: plan.prompt.len(),
            completion_tokens,
            cached_tokens,
            created_cache_tokens: full.saturating_sub(cached_tokens),
        }
    }

    async fn whole(self, readers: Vec<watch::Receiver<Progress>>) -> Result<Response<Body>, Failure> {
        let mut usage = Usage::default();
        for (plan, mut reader) in self.plans.iter().zip(readers) {
            let done = reader.wait_for(|progress| progress.cached_tokens.is_some()).await;
            let cached = done.map_err(|_| Failure::Gone)?.cached_tokens.unwrap_or(0);
            usage.add(self.usage(plan, cached));
        }
        Ok(ok(&self.reply.whole(&self.plans, usage, &self.serving.author.model.tokenizer)))
    }

    /// Every choice's chunks as they come, then what it cost, then the end.
    fn stream(
        self,
        readers: Vec<watch::Receiver<Progress>>,
        include_usage: bool,
        close_after: Option<u64>,
    ) -> impl Stream<Item = io::Result<Bytes>> + Send {
        let answer = Arc::new(self);
        let total = Arc::new(Mutex::new(Usage::default()));
        let choices: Vec<_> = readers
            .into_iter()
            .enumerate()
            .map(|(index, reader)| choice(answer.clone(), index, reader, total.clone()).boxed())
            .collect();
        let end = stream::once(async move {
            let usage = *total.lock();
            let last =
                if include_usage { vec![answer.reply.usage(usage), reply::DONE] } else { vec![reply::DONE] };
            stream::iter(last.into_iter().map(Ok))
        });
        stream::select_all(choices).chain(end.flatten()).scan(0, move |sent, chunk| {
            *sent += 1;
            let cut = close_after.is_some_and(|after| *sent > after);
            let chunk = if cut { Err(gone()) } else { chunk };
            std::future::ready(Some(chunk))
        })
    }
}

/// One choice: an opening, then a chunk whenever more tokens are out.
fn choice(
    answer: Arc<Answer>,
    index: usize,
    reader: watch::Receiver<Progress>,
    total: Arc<Mutex<Usage>>,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let opening = answer.reply.opening(index, &answer.plans[index]);
    stream::unfold(Some((reader, opening, 0)), move |state| {
        let (answer, total) = (answer.clone(), total.clone());
        async move {
            let (mut reader, opening, sent) = state?;
            let plan = &answer.plans[index];
            // The opening, too, goes out when there is a first token, as vLLM's does.
            let progress =
                reader.wait_for(|progress| progress.generated > sent).await.map(|progress| *progress);
            let Ok(progress) = progress else { return Some((Err(gone()), None)) };
            if let Some(opening) = opening {
                return Some((Ok(opening), Some((reader, None, sent))));
            }
            let to = progress.generated.min(plan.answer.len());
            let chunk = answer.reply.chunk(index, plan, sent, to, &answer.serving.author.model.tokenizer);
            if to < plan.answer.len() {
                return Some((Ok(chunk), Some((reader, None, to))));
            }
            total.lock().add(answer.usage(plan, progress.cached_tokens.unwrap_or(0)));
            Some((Ok(chunk), None))
        }
    })
}

/// Work that would hold others up.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Failure::Gone)?
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, EngineGone)
}

fn ok(value: &impl serde::Serialize) -> Response<Body> {
    json(StatusCode::OK, value)
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
