//! The request's path, read from top to bottom: read, prompt, overlap, place, forward.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderName, HeaderValue,
};
use hyper::{HeaderMap, Request, Response};
use kvlane_engine_adapters::process::since_1970;
use kvlane_indexer::Overlap;
use serde::Deserialize;
use tokio::time::Instant;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::continuation::Continuation;
use super::read_body;
use crate::access::{CREDENTIALS, Key, Pass};
use crate::app::Router;
use crate::discovery::{Served, WorkerState};
use crate::error::RouterError;
use crate::memory::Explained;
use crate::metrics::Meter;
use crate::openai::{ClientRequest, Endpoint, json_error};
use crate::preprocess::{Blocks, Prompt};
use crate::proxy::{Body, Expects, Journey, Ledger, Payload, PlacedBy, passed_on};
use crate::scheduling::{Decision, Demand, Placement, Priority};
use crate::telemetry::{REQUEST_ID, RequestId, Span, TRACEPARENT};

/// An error, and whether a meter has counted it.
pub(super) struct Refused {
    pub(super) error: RouterError,
    pub(super) metered: bool,
}

impl From<RouterError> for Refused {
    fn from(error: RouterError) -> Self {
        Self { error, metered: false }
    }
}

/// Which conversation it is, of a model and of whoever asks: what others call theirs does not matter.
pub(super) fn session_key(session: &str, served: &Served, key: Option<&Key>) -> u64 {
    let model = xxh3_64(served.group.name.as_bytes());
    let whose = key.map_or(model, |key| xxh3_64_with_seed(key.name().as_bytes(), model));
    xxh3_64_with_seed(session.as_bytes(), whose)
}

pub(super) async fn answer(
    router: &Arc<Router>,
    endpoint: Endpoint,
    request: Request<Incoming>,
    pass: Option<Pass>,
    arrived: Instant,
    id: &RequestId,
) -> Result<Response<Body>, Refused> {
    let key = pass.as_ref().map(|pass| pass.key().clone());
    let key = key.as_deref();
    let span = router.tracer.begin(request.headers(), endpoint.path(), id);
    let (parts, body) = request.into_parts();
    let server = &router.config.server;
    let bytes = read_body(body, server.body_limit_mib, Duration::from_millis(server.body_timeout_ms)).await?;
    let received = Instant::now();

    let (payload, model, asker) = if endpoint.generates() {
        let request = router.preprocessor.read(endpoint, bytes, key.map(Key::imposed)).await?;
        let (model, asker) = (request.view.model.clone(), Asker::of(&parts.headers, Some(&request), key)?);
        (Payload::Generate(request), model, asker)
    } else {
        // Those that compute nothing of a prompt have nothing to keep apart.
        let computes = matches!(endpoint, Endpoint::Embeddings | Endpoint::Responses);
        let imposed = key.filter(|_| computes).map(Key::imposed);
        let (named, body) = router.preprocessor.named(bytes, imposed).await?;
        let streams = named.stream.unwrap_or(false);
        let asker = Asker::of(&parts.headers, None, key)?;
        (Payload::Raw { path: endpoint.path(), body, streams }, named.model, asker)
    };
    let served = router.served(model.as_deref(), key)?;
    let meter = Meter::begin(&router.metrics, served.metrics.clone(), endpoint, payload.streams(), arrived);
    let mut ledger = Ledger::open(meter, id.clone(), span, pass, router.config.log.access);

    let engine_priority = asker.number;
    let placed = place(router, &payload, &served, asker, &mut ledger, arrived, received).await;
    let Placed { served, demand, exact, overlap, placement } = placed.map_err(|error| {
        ledger.refused(&error);
        Refused { error, metered: true }
    })?;
    let session = demand.session;
    let mut headers = outgoing(&parts.headers);
    headers.insert(REQUEST_ID, id.header());
    if let Some(key) = key {
        CREDENTIALS.iter().for_each(|name| drop(headers.remove(*name)));
        // Two clients may call their requests the same, and an engine would take one for the other.
        // Names have no colon, so what is before the first one is the key's.
        if let Ok(id) = HeaderValue::from_str(&format!("{}:{id}", key.name())) {
            headers.insert(REQUEST_ID, id);
        }
    }
    if let Some(authorization) = &router.worker_authorization {
        headers.insert(AUTHORIZATION, authorization.clone());
    }
    if let Some(number) = engine_priority {
        headers.insert(ENGINE_PRIORITY, number.into());
    }
    if let Some(traceparent) = ledger.span.as_ref().and_then(Span::traceparent) {
        headers.insert(TRACEPARENT, traceparent);
    }
    let expects = Expects {
        confirmed: router.config.index.predicted_ttl_s > 0,
        unconfirmed_life: router.config.index.approximate_ttl_s,
    };
    let resume = match &payload {
        Payload::Generate(request) => Continuation::of(router, request, &headers, session, expects, &ledger),
        Payload::Raw { .. } => None,
    };
    let journey = Journey {
        payload,
        headers,
        served,
        demand,
        overlap,
        placement,
        ledger,
        expects,
        names_worker: router.config.routing.decision_headers,
        audited: router.config.index.audit && exact,
        sight: router.sight.clone(),
        resume,
    };
    router.proxy.forward(journey).await.map_err(|error| Refused { error, metered: true })
}

/// A request that has a worker.
struct Placed {
    /// As it was when it was placed.
    served: Arc<Served>,
    demand: Demand,
    /// Whether its tokens were counted as its engine does, and cached ones are read there.
    exact: bool,
    overlap: Overlap,
    placement: Placement,
}

/// Everything between the body and the worker.
async fn place(
    router: &Arc<Router>,
    payload: &Payload,
    served: &Arc<Served>,
    asker: Asker,
    ledger: &mut Ledger,
    arrived: Instant,
    received: Instant,
) -> Result<Placed, RouterError> {
    let policy = router.scheduler.policy();
    let prompt = match payload {
        Payload::Generate(request) => {
            let prompt = prompt(router, request, served).await?;
            ledger.meter.prepared(received - arrived, prompt.took);
            check_length(router, request, served, &prompt)?;
            prompt
        }
        Payload::Raw { body, .. } => Prompt::unknown(body.len()),
    };
    if let Some(pass) = &mut ledger.pass {
        pass.take_prompt(prompt.tokens)?;
    }
    let key = ledger.pass.as_ref().map(|pass| pass.key().clone());
    let generates = matches!(payload, Payload::Generate(_));
    let demand = Demand {
        blocks: prompt.blocks,
        prompt_tokens: prompt.tokens,
        block_tokens: served.group.block_size.tokens(),
        // A conversation is at home with one model at a time.
        session: asker
            .session
            .as_ref()
            .filter(|_| generates)
            .map(|session| session_key(session, served, key.as_deref())),
        room: Some(served.group.room.clone()),
        streamed: payload.streams(),
        arrived: router.scheduler.time(arrived),
    };
    let draw = if policy.takes_turns() { served.group.turn() } else { rand::random() };
    let mut took = (Duration::ZERO, Duration::ZERO);
    // Who is there, what each holds and has to do is looked at again whenever the request's turn comes.
    let mut attempt = || {
        let served = router.served(Some(&served.name), None).unwrap_or_else(|_| served.clone());
        let looked = Instant::now();
        let overlap = router.index.overlap(&demand.blocks, router.clock.tick());
        let found = Instant::now();
        let standings = served.standings(&router.sight, &policy, &router.index);
        let now = router.scheduler.time(found);
        let placed = if generates {
            router.scheduler.place(&demand, &overlap, &standings, draw, now)
        } else {
            router.scheduler.place_anyway(&demand, &overlap, &standings, draw, now)
        };
        took = (found - looked, found.elapsed());
        match placed {
            Err(decision) if decision.must_wait() => None,
            Err(decision) => Some(Err(no_worker(&served, &decision))),
            Ok(placement) => Some(Ok((served, overlap, placement))),
        }
    };
    let placed = if generates {
        let name = xxh3_64(served.name.as_bytes());
        served.group.room.placed(name, asker.priority, attempt).await
    } else {
        // Not a matter of slots: it finds somebody, or nobody is there.
        Ok((attempt().unwrap_or(Err(RouterError::Internal)), Duration::ZERO))
    };
    ledger.meter.waited(asker.priority, placed.as_ref().map(|(_, waited)| *waited).map_err(|why| *why));
    let full = |why| RouterError::Full { model: served.name.clone(), why };
    let (placed, waited) = placed.map_err(full)?;
    let (served, overlap, placement) = placed?;
    ledger.meter.placed(took.0, took.1, received.elapsed().saturating_sub(waited));
    let mode = router.mode().name();
    let key = key.as_deref().map(Key::name);
    router.memory.keep(key, ledger.id.as_bytes(), || {
        let at = since_1970().as_secs_f64();
        let decision = &placement.decision;
        Explained::new(&served, mode, &demand, prompt.exact, &overlap, decision, at).asked_by(key)
    });
    ledger.placed = PlacedBy {
        session: asker.session.map(|session| session.chars().take(SHOWN_SESSION).collect()),
        prompt_tokens: demand.prompt_tokens,
        blocks: demand.blocks.len(),
        block_tokens: demand.block_tokens,
        at: Some(Instant::now()),
        ..PlacedBy::new(mode, &placement.decision)
    };
    tracing::debug!(model = served.name, decision = ?placement.decision, "placed");
    let reads_cache = |request: &ClientRequest| {
        // Engines compute all of a prompt whose own probabilities are asked for.
        request.view.prompt_logprobs.is_none() && request.view.echo != Some(true)
    };
    let exact = prompt.exact && matches!(payload, Payload::Generate(request) if reads_cache(request));
    Ok(Placed { served, demand, exact, overlap, placement })
}

/// Longer names of conversations are cut in the log.
const SHOWN_SESSION: usize = 128;

/// The prompt, as far as the way of placing or a limit needs it.
pub(super) async fn prompt(
    router: &Arc<Router>,
    request: &Arc<ClientRequest>,
    served: &Arc<Served>,
) -> Result<Prompt, RouterError> {
    if !router.scheduler.policy().sees_caches() && router.config.model.max_len == 0 {
        return Ok(Prompt::unknown(request.bytes.len()));
    }
    let blocks = Blocks { size: served.group.block_size, lora_name: served.lora_name.clone() };
    let engine = served.ready().next().map(|worker| worker.url.clone());
    let now = since_1970().as_secs() as i64;
    router.preprocessor.prompt(request, &served.group.words, &blocks, engine.as_deref(), now).await
}

/// Refuses what every engine would refuse, without asking one.
fn check_length(
    router: &Router,
    request: &ClientRequest,
    served: &Served,
    prompt: &Prompt,
) -> Result<(), RouterError> {
    if !prompt.exact {
        return Ok(());
    }
    let configured = router.config.model.max_len;
    let (limit, answer) = if configured > 0 {
        let asked = request.view.limit().map_or(1, |(_, limit)| limit.max(1) as usize);
        (configured, asked)
    } else {
        // What else the engine wants is for it to say.
        (served.max_len.unwrap_or(usize::MAX), 1)
    };
    if prompt.tokens.saturating_add(answer) <= limit {
        return Ok(());
    }
    let (param, asked) = match request.view.limit().filter(|_| configured > 0) {
        Some((name, tokens)) if prompt.tokens < limit => {
            (name, format!(" and {tokens} for its answer in `{name}`"))
        }
        _ if request.view.messages.is_some() => ("messages", String::new()),
        _ => ("prompt", String::new()),
    };
    Err(RouterError::BadRequest {
        message: format!(
            "the prompt has {} tokens{asked}; model `{}` takes at most {limit} tokens for both",
            prompt.tokens, served.name
        ),
        param: Some(param.to_owned()),
        code: Some("context_length_exceeded"),
    })
}

fn no_worker(served: &Served, decision: &Decision) -> RouterError {
    let count = |state: WorkerState| served.workers.iter().filter(|worker| worker.state() == state).count();
    let states = WorkerState::ALL.map(|state| (count(state), state.name()));
    let mut why: Vec<String> = states
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, name)| format!("{count} {name}"))
        .collect();
    if decision.barred.is_empty() {
        why.push("none there".to_owned());
    }
    RouterError::NoWorker { model: served.name.clone(), why: why.join(", ") }
}

/// Who asks: the conversation, and how urgent it is.
#[derive(Debug, Default)]
pub(super) struct Asker {
    pub(super) session: Option<String>,
    priority: Priority,
    /// What the engine is told of that, where the key does not leave it to the client.
    number: Option<i32>,
}

/// vLLM's header, which wins over what the body says.
const ENGINE_PRIORITY: HeaderName = HeaderName::from_static("x-vllm-priority");

impl Asker {
    /// In any of the ways clients say it.
    pub(super) fn of(
        headers: &HeaderMap,
        request: Option<&Arc<ClientRequest>>,
        key: Option<&Key>,
    ) -> Result<Self, RouterError> {
        let header = |name: &str| headers.get(name)?.to_str().ok().filter(|value| !value.is_empty());
        let session = header("x-session-id")
            .or_else(|| header("x-dynamo-session-id"))
            .map(str::to_owned)
            .or_else(|| request?.session());
        // vLLM's number, less being sooner; it is passed on to the engine as well.
        let said = header(ENGINE_PRIORITY.as_str()).map(str::parse);
        let number: Option<i32> = said.clone().and_then(Result::ok).or_else(|| request?.view.priority);
        let asked = match header("x-kvlane-priority") {
            Some(word) => Priority::parse(word).ok_or_else(|| {
                let message = format!("`x-kvlane-priority` is {word:?}, expected high, normal or low");
                RouterError::bad_request("x-kvlane-priority".to_owned(), message)
            })?,
            None => number.map_or(Priority::Normal, Priority::of_number),
        };
        let Some(ceiling) = key.and_then(|key| key.rules.priority) else {
            return Ok(Self { session, priority: asked, number: None });
        };
        // What cannot be read here an engine might still read: it counts as the most urgent.
        let told = if matches!(said, Some(Err(_))) { i32::MIN } else { number.unwrap_or(0) };
        let too_soon = Priority::of_number(told).before(ceiling);
        let number = too_soon.then(|| ceiling.number());
        Ok(Self { session, priority: if asked.before(ceiling) { ceiling } else { asked }, number })
    }
}

/// The client's headers as they go to a worker: all but those that were meant for us.
fn outgoing(headers: &HeaderMap) -> HeaderMap {
    let mut headers = passed_on(headers);
    for name in [HOST, CONTENT_LENGTH, EXPECT] {
        headers.remove(name);
    }
    // The answer is to be read on its way.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers
}

/// For explanations: a request as it would be read, and by which endpoint.
pub(super) async fn read_either(
    router: &Router,
    bytes: Bytes,
    key: Option<&Key>,
) -> Result<Arc<ClientRequest>, RouterError> {
    #[derive(Deserialize)]
    struct Either {
        #[serde(default)]
        prompt: Option<serde::de::IgnoredAny>,
    }
    let either: Either = serde_json::from_slice(&bytes).map_err(|_| json_error::<Either>(&bytes))?;
    let endpoint = if either.prompt.is_some() { Endpoint::Completions } else { Endpoint::Chat };
    router.preprocessor.read(endpoint, bytes, key.map(Key::imposed)).await
}
