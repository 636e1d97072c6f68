//! What operators ask: who is there, what is known, why a request goes where it goes.

use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use kvlane_engine_adapters::engine_facts::Engine;
use kvlane_engine_adapters::http_client::HttpClient;
use kvlane_engine_adapters::process::since_1970;
use kvlane_indexer::{SequenceHash, WorkerId};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::completions::{Asker, prompt, read_either, session_key};
use super::{decoded, exposition, json_answer, read_body, text};
use crate::access::{Key, Site, from_elsewhere, own_host};
use crate::app::Router;
use crate::config::{KvPolicy, Mode, Routing};
use crate::discovery::Worker;
use crate::error::RouterError;
use crate::memory::Explained;
use crate::openai::json_error;
use crate::proxy::Body;
use crate::scheduling::Demand;

/// What needs no token: whoever watches over the process has none.
const OPEN: [&str; 4] = ["/metrics", "/live", "/ready", "/health"];
const NO_SITE: Site<'static> =
    Site { origins: &[], expected: "a request of the listener's own pages or of a program" };

pub(super) async fn answer(
    router: &Arc<Router>,
    request: Request<Incoming>,
) -> Result<Response<Body>, RouterError> {
    let (parts, body) = request.into_parts();
    if router.config.admin.host.is_loopback() {
        own_host(&parts.uri, &parts.headers)?;
    }
    from_elsewhere(&parts.uri, &parts.headers, NO_SITE)?;
    if !OPEN.contains(&parts.uri.path()) {
        router.admin_token.check(&parts.headers)?;
    }
    let (method, path) = (parts.method.clone(), parts.uri.path().to_owned());
    let (drained, recalled) = (path.strip_prefix("/admin/drain/"), path.strip_prefix("/admin/explain/"));
    let allowed = match path.as_str() {
        "/admin/workers" | "/admin/index" | "/admin/tree" | "/admin/config" | "/admin/keys" => "GET",
        "/admin/mode" => "GET, POST",
        "/admin/explain" => "POST",
        "/metrics" | "/live" | "/ready" | "/health" => "GET",
        _ if drained.is_some() => "POST",
        _ if recalled.is_some() => "GET",
        _ => return Err(RouterError::UnknownPath { method: method.to_string(), path }),
    };
    if !allowed.split(", ").any(|allowed| allowed == method.as_str()) {
        return Err(RouterError::MethodNotAllowed { method: method.to_string(), path, allowed });
    }
    let server = &router.config.server;
    let patience = std::time::Duration::from_millis(server.body_timeout_ms);
    let bytes = read_body(body, server.body_limit_mib, patience).await?;
    let answer = match path.as_str() {
        "/admin/workers" => {
            json!({ "workers": router.keeper.fleet().workers.iter().map(|worker| shown(router, worker)).collect::<Vec<_>>() })
        }
        "/admin/index" => index(router),
        "/admin/tree" => tree(router, parts.uri.query())?,
        "/admin/config" => router.settings.clone(),
        "/admin/keys" => router.access.shown(),
        "/admin/mode" if method == Method::GET => mode(router),
        "/admin/mode" => switch(router, &bytes).await?,
        "/admin/explain" => {
            let session = Asker::of(&parts.headers, None, None)?.session;
            explain(router, bytes, session, Wanted::of(router, parts.uri.query())?).await?
        }
        "/metrics" => return Ok(exposition::answer(router)),
        "/live" => return Ok(text(StatusCode::OK, "live")),
        "/health" => return Ok(router.health(true)),
        "/ready" => {
            return Ok(match router.ready() {
                Ok(()) => text(StatusCode::OK, "ready"),
                Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, why),
            });
        }
        _ => match recalled {
            Some(id) => recall(router, &decoded(id), Wanted::of(router, parts.uri.query())?.key.as_deref())?,
            None => drain(router, &decoded(drained.unwrap_or_default()), &bytes)?,
        },
    };
    Ok(json_answer(StatusCode::OK, &answer))
}

fn shown(router: &Router, worker: &Worker) -> Value {
    let about = worker.about();
    let ranks: Vec<Value> = about
        .ranks
        .iter()
        .map(|rank| {
            let id = WorkerId::new(worker.instance, *rank);
            let load = router.scheduler.load(id);
            json!({
                "rank": rank, "requests": load.requests, "prefill_tokens": load.prefill_tokens, "blocks": load.blocks,
                "total_blocks": load.total_blocks, "held_blocks": router.index.held_blocks(id),
            })
        })
        .collect();
    let feeds = worker.feeds.lock();
    let events = feeds.as_ref().map(|feeds| {
        let states: Vec<_> = feeds.health().iter().map(|health| health.report()).collect();
        json!({
            "source": feeds.kind(), "refused": feeds.refusal(), "caught_up": feeds.caught_up(),
            "ranks": serde_json::to_value(states).unwrap_or_default(),
        })
    });
    json!({
        "id": worker.instance,
        "name": worker.name,
        "url": worker.url,
        "state": worker.state(),
        "breaker": worker.breaker.state().name(),
        "engine": about.engine,
        "models": about.models.iter().map(|model| &model.name).collect::<Vec<_>>(),
        "max_model_len": about.max_model_len,
        "block_size": about.block_size,
        "kv_blocks": about.kv_blocks,
        "slots": worker.slots(),
        "other_requests": worker.strangers(),
        "index": worker.belief.report(),
        "engine_load": worker.engine_load(),
        "load": ranks,
        "events": events,
    })
}

fn index(router: &Router) -> Value {
    let stats = router.index.stats();
    let workers: Vec<Value> = stats
        .workers
        .iter()
        .map(|worker| {
            json!({
                "id": worker.worker.instance, "rank": worker.worker.dp_rank, "device_blocks": worker.device_blocks,
                "host_blocks": worker.host_blocks, "disk_blocks": worker.disk_blocks, "bytes": worker.bytes,
            })
        })
        .collect();
    let fleet = router.keeper.fleet();
    let models: Map<String, Value> = fleet
        .models
        .values()
        .map(|served| {
            let known = json!({
                "base": served.group.name, "block_size": served.group.block_size.tokens(),
                "prompts_known_by": served.group.words.name(), "workers": served.workers.len(),
            });
            (served.name.clone(), known)
        })
        .collect();
    let nats = router.keeper.nats().map(|view| serde_json::to_value(view.report()).unwrap_or_default());
    json!({
        "bytes": stats.bytes, "max_bytes": stats.max_bytes, "nodes": stats.nodes,
        "distinct_blocks": stats.distinct_blocks, "predicted_blocks": stats.predicted_blocks,
        "stored_blocks_total": stats.stored_blocks_total, "removed_blocks_total": stats.removed_blocks_total,
        "orphaned_blocks_total": stats.orphaned_blocks_total, "forgotten_blocks_total": stats.forgotten_blocks_total,
        "workers": workers, "models": models, "nats": nats,
    })
}

/// Nodes that are shown unless another number is asked for, that may be asked for, and in all of a tree that is looked at:
/// events wait meanwhile.
const SHOWN_NODES: usize = 64;
const MOST_SHOWN_NODES: usize = 1000;
const MOST_NODES: usize = 200_000;

fn shown_nodes(query: Option<&str>) -> Result<usize, RouterError> {
    let Some(query) = query.filter(|query| !query.is_empty()) else { return Ok(SHOWN_NODES) };
    let most = query.strip_prefix("most=").and_then(|most| most.parse().ok());
    most.filter(|most| (1..=MOST_SHOWN_NODES).contains(most)).ok_or_else(|| {
        let message = format!("query is {query:?}, expected most=1 to most={MOST_SHOWN_NODES}");
        RouterError::bad_request("most".to_owned(), message)
    })
}

/// The tree's largest branches and who holds them.
fn tree(router: &Router, query: Option<&str>) -> Result<Value, RouterError> {
    let most = shown_nodes(query)?;
    let at = since_1970().as_secs_f64();
    let Some(outline) = router.index.outline(most, MOST_NODES) else {
        let note =
            format!("the tree has more than {MOST_NODES} nodes, too many to look at while events wait");
        return Ok(json!({ "at": at, "nodes": [], "left_out": router.index.stats().nodes, "note": note }));
    };
    let fleet = router.keeper.fleet();
    let name = |id: WorkerId| {
        fleet.workers.iter().find(|worker| worker.instance == id.instance).map(|worker| &worker.name)
    };
    let nodes: Vec<Value> = outline
        .nodes
        .iter()
        .map(|node| {
            let holders = node.holders.iter().map(|(id, blocks)| {
                json!({ "worker": name(*id), "id": id.instance, "rank": id.dp_rank, "blocks": blocks })
            });
            json!({
                "parent": node.parent, "first": hex(&node.first), "start": node.start, "blocks": node.blocks,
                "held_below": node.held_below, "holders": holders.collect::<Vec<_>>(),
            })
        })
        .collect();
    Ok(json!({ "at": at, "nodes": nodes, "left_out": outline.left_out, "note": null }))
}

/// A block's name, which JSON's numbers have no room for.
fn hex(block: &SequenceHash) -> Value {
    format!("{:016x}", block.0).into()
}

fn mode(router: &Router) -> Value {
    let (routing, weights) = (router.routing(), router.weights());
    json!({
        "mode": routing.mode,
        "policy": routing.policy,
        "overlap_weight": routing.overlap_weight,
        "temperature": routing.temperature,
        "cost": {
            "prefill_block": weights.overlap,
            "decode_block": 1.0,
            "request": weights.request,
            "waiting_request": weights.waiting,
            "home": -weights.home,
        },
        "slot_guard": weights.slot_guard,
        "lean": router.scheduler.safety().lean,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Switch {
    mode: Option<String>,
    /// Takes its weights along, unless others are given with it.
    policy: Option<String>,
    request_weight: Option<f64>,
    overlap_weight: Option<f64>,
    temperature: Option<f64>,
    /// Empties the workers' caches and what is known of them, so that a comparison starts clean.
    #[serde(default)]
    reset: bool,
}

/// An operator's body. A list with the members' values in their order would be read as well, and is not meant.
fn object<'b, T: Deserialize<'b>>(bytes: &'b [u8], example: &str) -> Result<T, RouterError> {
    if bytes.trim_ascii_start().first().is_some_and(|first| *first != b'{') {
        let message = format!("the body is no JSON object, expected such as {example}");
        return Err(RouterError::bad_request(None, message));
    }
    serde_json::from_slice(bytes).map_err(|_| json_error::<T>(bytes))
}

impl Switch {
    fn read(bytes: &[u8]) -> Result<Self, RouterError> {
        object(bytes, r#"{"mode": "round_robin"}"#)
    }

    fn change(&self, routing: &mut Routing) -> Result<(), RouterError> {
        if let Some(mode) = &self.mode {
            let wrong = |expected: String| {
                RouterError::bad_request(
                    "mode".to_owned(),
                    format!("`mode` is {mode:?}, expected {expected}"),
                )
            };
            routing.mode = mode.parse::<Mode>().map_err(wrong)?;
        }
        if let Some(policy) = &self.policy {
            let wrong = |expected: String| {
                RouterError::bad_request(
                    "policy".to_owned(),
                    format!("`policy` is {policy:?}, expected {expected}"),
                )
            };
            routing.policy = policy.parse::<KvPolicy>().map_err(wrong)?;
            (routing.overlap_weight, routing.request_weight) = (1.0, None);
            (routing.waiting_weight, routing.home_weight, routing.slot_guard) = (None, None, None);
        }
        for (name, value) in [
            ("overlap_weight", self.overlap_weight),
            ("request_weight", self.request_weight),
            ("temperature", self.temperature),
        ] {
            let Some(value) = value else { continue };
            if !(0.0..=1e6).contains(&value) {
                let message = format!("`{name}` is {value}, expected 0 to 1000000");
                return Err(RouterError::bad_request(name.to_owned(), message));
            }
            match name {
                "overlap_weight" => routing.overlap_weight = value,
                "request_weight" => routing.request_weight = Some(value),
                _ => routing.temperature = value,
            }
        }
        Ok(())
    }
}

async fn switch(router: &Arc<Router>, bytes: &[u8]) -> Result<Value, RouterError> {
    let asked = Switch::read(bytes)?;
    let mut routing = router.routing();
    asked.change(&mut routing)?;
    router.set_routing(routing);
    let mut answer = mode(router);
    if asked.reset {
        answer["reset"] = reset(router).await;
    }
    tracing::info!(mode = router.mode().name(), reset = asked.reset, "routing mode set");
    Ok(answer)
}
const RESET_PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// Empties every cache that can be emptied from outside. What is known of a worker goes only when its cache did, or the
/// index would stay blind to what it still holds.
async fn reset(router: &Arc<Router>) -> Value {
    let client = HttpClient::new(RESET_PATIENCE, 1 << 16, router.keeper.tls().clone())
        .bearing(router.worker_authorization.clone());
    let mut outcome = Map::new();
    for worker in &router.keeper.fleet().workers {
        let path = match worker.about().engine {
            Engine::Sglang => "/flush_cache",
            Engine::Vllm | Engine::Trtllm => "/reset_prefix_cache",
        };
        let emptied = client.post(&format!("{}{path}", worker.url)).await;
        let said = match emptied {
            Ok(_) => {
                for rank in &worker.about().ranks {
                    let id = WorkerId::new(worker.instance, *rank);
                    router.index.forget(id);
                    let _ = router.index.register(id);
                }
                "emptied".to_owned()
            }
            Err(error) => format!("not emptied: {error} (vLLM needs VLLM_SERVER_DEV_MODE=1)"),
        };
        outcome.insert(worker.name.clone(), said.into());
    }
    outcome.into()
}

/// What an explanation is asked for with: `?key=NAME&hashes=true`.
#[derive(Debug, Default)]
struct Wanted {
    /// Who is taken to ask.
    key: Option<Arc<Key>>,
    hashes: bool,
}

impl Wanted {
    fn of(router: &Router, query: Option<&str>) -> Result<Self, RouterError> {
        let mut wanted = Self::default();
        for part in query.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("hashes", hashes)) => wanted.hashes = hashes == "true",
                Some(("key", name)) => {
                    let unknown = || RouterError::NotFound { message: format!("there is no key {name:?}") };
                    wanted.key = Some(router.access.named(&decoded(name)).ok_or_else(unknown)?);
                }
                _ => {
                    let message = format!("query has {part:?}, expected key=NAME or hashes=true");
                    return Err(RouterError::bad_request(None, message));
                }
            }
        }
        Ok(wanted)
    }
}

/// What would be decided about a request now, and its blocks' names where they are wanted. Nothing is placed.
async fn explain(
    router: &Arc<Router>,
    bytes: Bytes,
    session: Option<String>,
    Wanted { key, hashes }: Wanted,
) -> Result<Value, RouterError> {
    let key = key.as_deref();
    let request = read_either(router, bytes, key).await?;
    let served = router.served(request.view.model.as_deref(), key)?;
    let prompt = prompt(router, &request, &served).await?;
    let overlap = router.index.overlap(&prompt.blocks, router.clock.tick());
    let session = session.or_else(|| request.session());
    let demand = Demand {
        blocks: prompt.blocks,
        prompt_tokens: prompt.tokens,
        block_tokens: served.group.block_size.tokens(),
        session: session.map(|session| session_key(&session, &served, key)),
        room: None,
        streamed: request.streams(),
        arrived: router.scheduler.time(Instant::now()),
    };
    let standings = served.standings(&router.sight, &router.scheduler.policy(), &router.index);
    let decision = router.scheduler.explain(&demand, &overlap, &standings, 0, demand.arrived);
    let (mode, at) = (router.mode().name(), since_1970().as_secs_f64());
    let explained = Explained::new(&served, mode, &demand, prompt.exact, &overlap, &decision, at)
        .asked_by(key.map(Key::name));
    let mut answer = explained.shown(&router.keeper.fleet());
    if hashes {
        answer["block_hashes"] = demand.blocks.iter().map(hex).collect();
    }
    Ok(answer)
}

/// Why a request of late went where it went: the last one of that id, or of that id and key.
fn recall(router: &Router, id: &str, key: Option<&Key>) -> Result<Value, RouterError> {
    let found = match key {
        Some(key) => router.memory.of(Some(key.name()), id),
        None => {
            let names = router.access.names();
            let keys = std::iter::once(None).chain(names.iter().map(|name| Some(name.as_str())));
            keys.filter_map(|key| router.memory.of(key, id)).max_by(|a, b| a.at.total_cmp(&b.at))
        }
    };
    let Some(explained) = found else {
        let message = format!(
            "no request {id:?} is remembered, expected the x-request-id of one of the last {} placed \
             (routing.remembered_decisions)",
            router.config.routing.remembered_decisions
        );
        return Err(RouterError::NotFound { message });
    };
    Ok(explained.shown(&router.keeper.fleet()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Drain {
    #[serde(default = "yes")]
    draining: bool,
}

impl Drain {
    fn read(bytes: &[u8]) -> Result<Self, RouterError> {
        object(if bytes.trim_ascii().is_empty() { b"{}" } else { bytes }, r#"{"draining": true}"#)
    }
}

#[cfg(fuzzing)]
pub fn read_switch(bytes: &[u8], routing: &mut Routing) -> Result<(), RouterError> {
    Switch::read(bytes)?.change(routing)
}

#[cfg(fuzzing)]
pub fn read_drain(bytes: &[u8]) -> Result<bool, RouterError> {
    Drain::read(bytes).map(|drain| drain.draining)
}

#[cfg(fuzzing)]
pub fn read_most(query: &str) -> Result<usize, RouterError> {
    shown_nodes(Some(query))
}

fn yes() -> bool {
    true
}

fn drain(router: &Router, name: &str, bytes: &[u8]) -> Result<Value, RouterError> {
    let asked = Drain::read(bytes)?;
    let fleet = router.keeper.fleet();
    let named = |worker: &&Arc<Worker>| worker.name == name || worker.instance.to_string() == name;
    let Some(worker) = fleet.workers.iter().find(named) else {
        let known: Vec<&str> = fleet.workers.iter().map(|worker| worker.name.as_str()).collect();
        let message = format!("there is no worker {name:?}; there are: {}", known.join(", "));
        return Err(RouterError::bad_request("worker".to_owned(), message));
    };
    worker.drain(asked.draining);
    tracing::info!(worker = worker.name, draining = asked.draining, "worker drained by an operator");
    Ok(shown(router, worker))
}
