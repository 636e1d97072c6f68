//! What an engine says of itself over HTTP: its model, its cache, its load, and where its events are.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::HeaderValue;
use serde::Serialize;
use serde_json::Value;

use crate::http_client::{HttpClient, HttpError};
use crate::tls::ClientTls;

/// As much as the engine says; engines and versions differ.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineFacts {
    /// What requests may ask for, the base model first.
    pub models: Vec<ServedModel>,
    pub max_model_len: Option<usize>,
    pub block_size: Option<u32>,
    pub kv_blocks: Option<u64>,
    pub running: Option<u64>,
    pub waiting: Option<u64>,
    /// Share of KV blocks in use by requests.
    pub kv_usage: Option<f64>,
    /// When the process started; another value is another process.
    pub process_start: Option<f64>,
    pub events: Vec<EventEndpoint>,
    /// What its metrics' names give away.
    pub engine: Option<Engine>,
    /// Where its Prometheus metrics are, if anywhere.
    pub metrics_path: Option<&'static str>,
}

/// A name requests may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedModel {
    pub name: String,
    /// The path or repository it was loaded from.
    pub root: Option<String>,
    /// The model it is an adapter of.
    pub parent: Option<String>,
}

/// Dynamo's ids fit into what JavaScript can count to, and so do ours.
pub const ID_BITS: u64 = (1 << 53) - 1;

/// The number a worker goes by when nobody gave it one.
pub fn instance_of(url: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(url.trim_end_matches('/').as_bytes()) & ID_BITS
}

/// Whose dialect an engine speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    #[default]
    Vllm,
    Sglang,
    Trtllm,
}

impl Engine {
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Trtllm => "trtllm",
        }
    }

    /// TensorRT-LLM's other one is emptied by reading.
    pub fn metrics_path(self) -> &'static str {
        match self {
            Self::Vllm | Self::Sglang => "/metrics",
            Self::Trtllm => "/prometheus/metrics",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        [Self::Vllm, Self::Sglang, Self::Trtllm].into_iter().find(|engine| engine.name() == name)
    }
}

/// Where one rank's events are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventEndpoint {
    pub rank: u32,
    pub events: String,
    pub replay: Option<String>,
    pub topic: String,
}

/// Asks engines.
#[derive(Clone, Debug)]
pub struct EngineProbe {
    client: HttpClient,
}

impl EngineProbe {
    pub fn new(patience: Duration, tls: Arc<ClientTls>) -> Self {
        Self { client: HttpClient::new(patience, 8 << 20, tls) }
    }

    /// Shows this with every question.
    #[must_use]
    pub fn bearing(self, authorization: Option<HeaderValue>) -> Self {
        Self { client: self.client.bearing(authorization) }
    }

    /// Everything the engine at `url` tells. Only the list of models must be there.
    pub async fn ask(&self, url: &str) -> Result<EngineFacts, HttpError> {
        let url = url.trim_end_matches('/');
        let mut facts = EngineFacts::default();
        facts.read_models(&self.client.get(&format!("{url}/v1/models")).await?);
        // TensorRT-LLM's /metrics is emptied by reading, so this one is tried first.
        for path in ["/prometheus/metrics", "/metrics"] {
            if let Some(body) = self.if_there(&format!("{url}{path}")).await?
                && !body.starts_with(b"[")
            {
                facts.metrics_path = Some(path);
                facts.read_metrics(&String::from_utf8_lossy(&body));
                break;
            }
        }
        if let Some(body) = self.if_there(&format!("{url}/kv_event_sources")).await? {
            facts.read_event_sources(&body, host_of(url));
        } else if let Some(body) = self.if_there(&format!("{url}/server_info")).await? {
            facts.read_sglang_info(&body, host_of(url));
        }
        Ok(facts)
    }

    /// None when the engine says that it has nothing there. An engine too busy to answer has not said so.
    async fn if_there(&self, url: &str) -> Result<Option<Bytes>, HttpError> {
        match self.client.get(url).await {
            Ok(body) => Ok(Some(body)),
            Err(HttpError::Status { status, .. }) if status < 500 => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the engine says it is well.
    pub async fn alive(&self, url: &str) -> Result<(), HttpError> {
        self.client.get(&format!("{}/health", url.trim_end_matches('/'))).await.map(drop)
    }

    /// Load and age alone, cheaper to ask often. `path` is where the engine's metrics are.
    pub async fn load(&self, url: &str, path: &str) -> Result<EngineFacts, HttpError> {
        let body = self.client.get(&format!("{}{path}", url.trim_end_matches('/'))).await?;
        let mut facts = EngineFacts::default();
        facts.read_metrics(&String::from_utf8_lossy(&body));
        Ok(facts)
    }
}

impl EngineFacts {
    fn read_models(&mut self, body: &[u8]) {
        let list: Value = serde_json::from_slice(body).unwrap_or_default();
        for model in list["data"].as_array().into_iter().flatten() {
            let text = |field: &str| model[field].as_str().map(str::to_owned);
            let served = |name| ServedModel { name, root: text("root"), parent: text("parent") };
            self.models.extend(text("id").map(served));
            let len = model["max_model_len"].as_u64().map(|len| len as usize);
            self.max_model_len = self.max_model_len.or(len);
        }
    }

    fn read_metrics(&mut self, text: &str) {
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let Ok(value) = value.parse::<f64>() else { continue };
            let engine = match name.split([':', '_']).next() {
                Some("vllm") => Some(Engine::Vllm),
                Some("sglang") => Some(Engine::Sglang),
                Some("trtllm") => Some(Engine::Trtllm),
                _ => None,
            };
            // Simulated workers have names of several.
            if engine == Some(Engine::Vllm) || self.engine.is_none() {
                self.engine = engine.or(self.engine);
            }
            match name {
                "vllm:cache_config_info" => {
                    self.block_size = label(labels, "block_size").and_then(|size| size.parse().ok());
                    self.kv_blocks = label(labels, "num_gpu_blocks").and_then(|blocks| blocks.parse().ok());
                }
                "vllm:num_requests_running" | "sglang:num_running_reqs" | "trtllm_num_requests_running" => {
                    self.running = Some(self.running.unwrap_or(0).saturating_add(value as u64));
                }
                "vllm:num_requests_waiting" | "sglang:num_queue_reqs" | "trtllm_num_requests_waiting" => {
                    self.waiting = Some(self.waiting.unwrap_or(0).saturating_add(value as u64));
                }
                "vllm:kv_cache_usage_perc" | "sglang:token_usage" | "trtllm_kv_cache_utilization" => {
                    self.kv_usage = Some(value);
                }
                "trtllm_kv_cache_max_blocks" => self.kv_blocks = Some(value as u64),
                "process_start_time_seconds" => self.process_start = Some(value),
                _ => {}
            }
        }
    }

    fn read_event_sources(&mut self, body: &[u8], host: &str) {
        let sources: Value = serde_json::from_slice(body).unwrap_or_default();
        for (rank, source) in sources.as_object().into_iter().flatten().take(MAX_RANKS as usize) {
            let text = |field: &str| source[field].as_str().map(|endpoint| at_host(endpoint, host));
            let (Ok(rank), Some(events)) = (rank.parse(), text("endpoint")) else { continue };
            let topic = source["topic"].as_str().unwrap_or_default().to_owned();
            self.events.push(EventEndpoint { rank, events, replay: text("replay_endpoint"), topic });
        }
        self.events.sort_by_key(|endpoint| endpoint.rank);
    }
}

#[cfg(fuzzing)]
impl EngineFacts {
    /// The same bytes as every answer there is.
    pub fn read_any(&mut self, body: &[u8], url: &str) {
        self.read_models(body);
        self.read_metrics(&String::from_utf8_lossy(body));
        self.read_event_sources(body, host_of(url));
        self.read_sglang_info(body, host_of(url));
    }
}

/// Ranks that are believed of an engine.
const MAX_RANKS: u64 = 1024;

impl EngineFacts {
    /// SGLang names a first port and how many ranks there are.
    fn read_sglang_info(&mut self, body: &[u8], host: &str) {
        let info: Value = serde_json::from_slice(body).unwrap_or_default();
        let events = &info["kv_events"];
        let Some(first) = events["endpoint_port_base"].as_u64().and_then(|port| u16::try_from(port).ok())
        else {
            return;
        };
        let bound = events["endpoint_host"].as_str().unwrap_or("*");
        let topic = events["topic"].as_str().unwrap_or_default();
        self.block_size =
            self.block_size.or(events["block_size"].as_u64().and_then(|size| u32::try_from(size).ok()));
        let ranks = events["dp_size"].as_u64().unwrap_or(1).clamp(1, MAX_RANKS) as u16;
        for (rank, port) in (0..u32::from(ranks)).zip(first..) {
            let events = at_host(&format!("tcp://{bound}:{port}"), host);
            self.events.push(EventEndpoint { rank, events, replay: None, topic: topic.to_owned() });
        }
    }
}

/// An engine that has bound everywhere is reached where its API is.
fn at_host(endpoint: &str, host: &str) -> String {
    ["tcp://*:", "tcp://0.0.0.0:", "tcp://[::]:"]
        .iter()
        .find_map(|any| endpoint.strip_prefix(any))
        .map_or_else(|| endpoint.to_owned(), |port| format!("tcp://{host}:{port}"))
}

/// The host of a URL.
fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?']).next().unwrap_or(rest);
    // An IPv6 address has colons of its own, within brackets.
    match authority.rfind(']') {
        Some(end) => &authority[..=end],
        None => authority.split(':').next().unwrap_or(authority),
    }
}

fn label<'t>(labels: &'t str, name: &str) -> Option<&'t str> {
    let sought = format!("{name}=\"");
    // Not the end of a longer name.
    let begins = |at: &usize| *at == 0 || matches!(labels.as_bytes()[at - 1], b',' | b' ');
    let start = labels.match_indices(&sought).map(|(at, _)| at).find(begins)?;
    labels[start + sought.len()..].split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllms_own_metrics_and_sources_are_understood() {
        let mut facts = EngineFacts::default();
        facts.read_metrics(
            "# HELP x\nvllm:cache_config_info{_block_size_resolved=\"True\",block_size=\"32\",num_gpu_blocks=\"40\"} 1.0\n\
             vllm:num_requests_running{engine=\"0\",model_name=\"a b\"} 3.0\nvllm:num_requests_running{engine=\"1\"} 2.0\n\
             vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\nprocess_start_time_seconds 1.79e9\nodd\n",
        );
        assert_eq!((facts.block_size, facts.kv_blocks, facts.running), (Some(32), Some(40), Some(5)));
        assert_eq!((facts.kv_usage, facts.process_start), (Some(0.25), Some(1.79e9)));
        assert_eq!(facts.engine, Some(Engine::Vllm));
        facts.read_models(br#"{"data": [{"id": "base", "root": "/models/x", "max_model_len": 100}, {"id": "a", "parent": "base"}]}"#);
        assert_eq!(
            (facts.models[0].root.as_deref(), facts.models[1].parent.as_deref()),
            (Some("/models/x"), Some("base"))
        );
        assert_eq!((facts.models[0].parent.as_deref(), facts.max_model_len), (None, Some(100)));
        let sources = br#"{"1":{"endpoint":"tcp://*:5558","replay_endpoint":null,"topic":""},
            "0":{"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657","topic":"kv-events"}}"#;
        facts.read_event_sources(sources, "engine-0");
        assert_eq!(facts.events[0].events, "tcp://engine-0:5557");
        assert_eq!(facts.events[0].replay.as_deref(), Some("tcp://engine-0:5657"));
        assert_eq!((facts.events[1].rank, &facts.events[1].replay), (1, &None));
        facts.read_event_sources(b"not json", "x");
        let mut sglang = EngineFacts::default();
        sglang.read_sglang_info(
            br#"{"kv_events": {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 6000, "topic": "t", "block_size": 64, "dp_size": 2}}"#,
            "engine-1",
        );
        assert_eq!((sglang.block_size, sglang.events.len()), (Some(64), 2));
        assert_eq!(sglang.events[1].events, "tcp://engine-1:6001");
        assert_eq!(host_of("http://[::1]:8000/v1"), "[::1]");
        assert_eq!(host_of("http://h/v1"), "h");
    }
}
