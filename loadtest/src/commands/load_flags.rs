//! Flags that every live command has: the endpoint, what is asked of it, what is promised.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use kvlane_engine_adapters::secret::bearer_in;
use kvlane_loadtest::broker::{self, Broker};
use kvlane_loadtest::client::{Endpoint, Patience};
use kvlane_loadtest::corpus::Corpus;
use kvlane_loadtest::http::Admin;
use kvlane_loadtest::live::{Collector, Decisions, Load};
use kvlane_loadtest::measure::Objective;
use kvlane_loadtest::think::Think;
use kvlane_loadtest::trace::{HASH_TOKENS, Trace};
use kvlane_loadtest::workload::{Conversations, Groups, Pool, Replay, Workload, read_prompts};
use serde_json::{Map, Value, json};

use super::levels::range;

/// What a conversation's flags contradict: prompts and traces are what they are.
const OF_CONVERSATIONS: [&str; 13] = [
    "turns",
    "think",
    "documents",
    "document_tokens",
    "corpus",
    "zipf",
    "prefix_groups",
    "prefix_ratio",
    "prefix_tokens",
    "steady_start",
    "broker_url",
    "broker_model",
    "broker_key",
];

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LoadFlags {
    /// The endpoint, with or without /v1
    #[arg(long, default_value = "http://127.0.0.1:8000", value_name = "URL", help_heading = "Endpoint")]
    pub(crate) url: String,
    /// The model to ask for [default: the first the endpoint lists]
    #[arg(long, help_heading = "Endpoint")]
    model: Option<String>,
    /// The endpoint's key
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true, help_heading = "Endpoint")]
    key: Option<String>,
    /// JSON laid over every request's body, such as '{"temperature": 0, "ignore_eos": true}'
    #[arg(long, value_name = "JSON", help_heading = "Endpoint")]
    body: Option<String>,
    /// The header in which a router names the worker it chose
    #[arg(long, default_value = "x-kvlane-worker", value_name = "NAME", help_heading = "Endpoint")]
    worker_header: String,
    /// Names each conversation in x-session-id
    #[arg(long, help_heading = "Endpoint")]
    pub(crate) session_ids: bool,
    /// The administration of our router: decisions are joined by request id, and sweeps switch modes
    #[arg(long, value_name = "URL", help_heading = "Endpoint")]
    pub(crate) admin_url: Option<String>,
    /// File with the token that it asks for
    #[arg(long, value_name = "FILE", env = "KVLANE_ADMIN_TOKEN_FILE", help_heading = "Endpoint")]
    admin_token_file: Option<PathBuf>,
    /// Seconds an endpoint may be silent before a request is given up, and that a request may take
    #[arg(long, default_value_t = 120.0, value_name = "S", help_heading = "Endpoint")]
    silence: f64,
    #[arg(long, default_value_t = 600.0, value_name = "S", help_heading = "Endpoint")]
    timeout: f64,

    /// Turns of a conversation, as FEW-MANY [default: 3-5]
    #[arg(long, help_heading = "Conversations")]
    turns: Option<String>,
    /// Time between an answer and the next question: a mean in seconds (exponential), fixed:S, uniform:LEAST-MOST,
    /// lognormal:MEDIAN,SIGMA [default: 0.15]
    #[arg(long, help_heading = "Conversations")]
    think: Option<Think>,
    /// Tokens an answer may have
    #[arg(long, default_value_t = 1024, help_heading = "Conversations")]
    max_tokens: usize,
    /// Documents that conversations are about, made up from the seed [default: 10]
    #[arg(long, conflicts_with = "corpus", help_heading = "Conversations")]
    documents: Option<usize>,
    /// Tokens of each, as FEW-MANY [default: 3500-4000]
    #[arg(long, conflicts_with = "corpus", help_heading = "Conversations")]
    document_tokens: Option<String>,
    /// Texts of your own (.txt, .md) instead: a directory, or http(s)://BUCKET.HOST/PREFIX that lists as S3 does
    #[arg(long, value_name = "DIR|URL", help_heading = "Conversations")]
    corpus: Option<String>,
    /// How unevenly documents or groups are asked about: Zipf's exponent, 0 for equally [default: 0]
    #[arg(long, help_heading = "Conversations")]
    zipf: Option<f64>,
    /// Conversations that are there at the beginning are in the middle of it, with a made-up past
    #[arg(long, help_heading = "Conversations")]
    steady_start: bool,
    /// Tokens that the model makes of a word [default: the endpoint is asked]
    #[arg(long, conflicts_with_all = ["corpus", "prompts"], help_heading = "Conversations")]
    tokens_per_word: Option<f64>,

    /// Groups of conversations whose first prompts share a part, instead of documents
    #[arg(long, conflicts_with_all = ["documents", "document_tokens", "corpus"], help_heading = "Shared prefixes")]
    prefix_groups: Option<usize>,
    /// The share of a first prompt that its group has in common [default: 0.9]
    #[arg(long, requires = "prefix_groups", help_heading = "Shared prefixes")]
    prefix_ratio: Option<f64>,
    /// Tokens of a first prompt, as FEW-MANY [default: 3500-4000]
    #[arg(long, requires = "prefix_groups", help_heading = "Shared prefixes")]
    prefix_tokens: Option<String>,

    /// A model that plays the user and asks the next question; without it questions are made offline
    #[arg(long, value_name = "URL", help_heading = "Broker")]
    broker_url: Option<String>,
    /// Its model [default: the first it lists]
    #[arg(long, requires = "broker_url", value_name = "NAME", help_heading = "Broker")]
    broker_model: Option<String>,
    /// Its key [default: BROKER_API_KEY of the environment]
    #[arg(long, requires = "broker_url", help_heading = "Broker")]
    broker_key: Option<String>,

    /// Single prompts instead: a file with a line each, text or JSON with prompt or messages
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_CONVERSATIONS, help_heading = "Other workloads")]
    prompts: Option<PathBuf>,
    /// A trace in Mooncake's form instead, with its own times
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_CONVERSATIONS, conflicts_with = "prompts", help_heading = "Other workloads")]
    pub(crate) trace: Option<PathBuf>,
    /// So many times the trace's speed [default: 1]
    #[arg(long, requires = "trace", help_heading = "Other workloads")]
    trace_speed: Option<f64>,
    /// Tokens that one of its names stands for [default: 512]
    #[arg(long, requires = "trace", help_heading = "Other workloads")]
    trace_block_tokens: Option<usize>,
    /// Only so many of its requests
    #[arg(long, requires = "trace", help_heading = "Other workloads")]
    trace_requests: Option<usize>,

    /// What users are promised: milliseconds to the first token, and per token after it
    #[arg(long, default_value_t = 600.0, value_name = "MS", help_heading = "Objective")]
    pub(crate) ttft_slo: f64,
    #[arg(long, default_value_t = 60.0, value_name = "MS", help_heading = "Objective")]
    pub(crate) tpot_slo: f64,
    /// Milliseconds by which the generator's own timers may be late (p99; requests twice that) before its figures are invalid
    #[arg(long, default_value_t = 25.0, value_name = "MS", help_heading = "Objective")]
    lag_limit: f64,
    /// Equal seeds ask equal questions
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// A load that is ready to be built, as often as one likes.
pub(crate) struct Prepared {
    pub(crate) endpoint: Endpoint,
    pub(crate) objective: Objective,
    tokens_per_word: f64,
    corpus: Option<Corpus>,
    broker: Option<Endpoint>,
    flags: LoadFlags,
}

fn between(name: &str, value: f64, least: f64, most: f64) -> anyhow::Result<()> {
    ensure!((least..=most).contains(&value), "{name} is {value}, expected {least} to {most}");
    Ok(())
}

impl LoadFlags {
    /// Our router's administration, where it is named.
    pub(crate) fn admin(&self) -> anyhow::Result<Option<Admin>> {
        let token = self.admin_token_file.as_deref().map(bearer_in).transpose();
        let token = token.map_err(|error| anyhow::anyhow!("--admin-token-file: {error}"))?;
        Ok(self.admin_url.as_deref().map(|url| Admin::new(url, token)))
    }

    pub(crate) fn objective(&self) -> Objective {
        Objective { ttft_s: self.ttft_slo / 1e3, tpot_s: self.tpot_slo / 1e3 }
    }

    /// Refuses what is wrong, before anybody is asked anything.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        between("--ttft-slo", self.ttft_slo, 0.001, 1e7)?;
        between("--tpot-slo", self.tpot_slo, 0.001, 1e7)?;
        between("--lag-limit", self.lag_limit, 0.1, 1e6)?;
        between("--silence", self.silence, 0.001, 1e6)?;
        between("--timeout", self.timeout, 0.001, 1e6)?;
        between("--zipf", self.zipf.unwrap_or(0.0), 0.0, 10.0)?;
        between("--prefix-ratio", self.prefix_ratio.unwrap_or(0.9), 0.0, 1.0)?;
        between("--trace-speed", self.trace_speed.unwrap_or(1.0), 1e-3, 1e6)?;
        between("--tokens-per-word", self.tokens_per_word.unwrap_or(1.0), 0.1, 100.0)?;
        for (name, value) in [
            ("--max-tokens", Some(self.max_tokens)),
            ("--documents", self.documents),
            ("--prefix-groups", self.prefix_groups),
            ("--trace-block-tokens", self.trace_block_tokens),
            ("--trace-requests", self.trace_requests),
        ] {
            let value = value.unwrap_or(1);
            ensure!((1..=1_000_000).contains(&value), "{name} is {value}, expected 1 to 1000000");
        }
        self.turns()?;
        self.tokens(&self.document_tokens, "--document-tokens")?;
        self.tokens(&self.prefix_tokens, "--prefix-tokens")?;
        self.extra()?;
        Ok(())
    }

    pub(crate) fn lag_limit(&self) -> std::time::Duration {
        std::time::Duration::from_secs_f64(self.lag_limit / 1e3)
    }

    pub(crate) fn timeout(&self) -> std::time::Duration {
        std::time::Duration::from_secs_f64(self.timeout)
    }

    fn turns(&self) -> anyhow::Result<(usize, usize)> {
        range(self.turns.as_deref().unwrap_or("3-5"), "--turns")
    }

    fn tokens(&self, said: &Option<String>, name: &str) -> anyhow::Result<(usize, usize)> {
        range(said.as_deref().unwrap_or("3500-4000"), name)
    }

    fn extra(&self) -> anyhow::Result<Map<String, Value>> {
        let Some(body) = &self.body else { return Ok(Map::new()) };
        match serde_json::from_str(body) {
            Ok(Value::Object(extra)) => {
                for ours in ["messages", "model", "stream", "stream_options"] {
                    ensure!(!extra.contains_key(ours), "--body has `{ours}`, which is the generator's own");
                }
                Ok(extra)
            }
            _ => bail!("--body is {body:?}, expected a JSON object such as {{\"temperature\": 0}}"),
        }
    }

    fn think(&self) -> Think {
        self.think.unwrap_or(Think::Exponential { mean_s: 0.15 })
    }

    /// Asks what has to be asked: the model's name, its words, the corpus.
    pub(crate) async fn prepare(self) -> anyhow::Result<Prepared> {
        self.check()?;
        let patience = Patience {
            silence: std::time::Duration::from_secs_f64(self.silence),
            whole: self.timeout(),
            ..Patience::default()
        };
        let endpoint = named(&self.url, self.model.as_deref(), self.key.as_deref(), patience).await;
        let mut endpoint = endpoint.context("the endpoint")?;
        endpoint.worker_header = self.worker_header.parse().with_context(|| {
            format!("--worker-header is {:?}, expected a header's name", self.worker_header)
        })?;
        let corpus = match &self.corpus {
            Some(place) => Some(Corpus::open(place).await?),
            None => None,
        };
        let broker = match &self.broker_url {
            Some(url) => {
                let key = self.broker_key.clone().or_else(|| std::env::var("BROKER_API_KEY").ok());
                let named = named(url, self.broker_model.as_deref(), key.as_deref(), broker::patience());
                Some(named.await.context("the broker")?)
            }
            None => None,
        };
        let made_up = corpus.is_none() && self.prompts.is_none();
        let tokens_per_word = match self.tokens_per_word {
            Some(said) => said,
            None if made_up => endpoint.tokens_per_word().await.unwrap_or(USUAL_TOKENS_PER_WORD),
            None => USUAL_TOKENS_PER_WORD,
        };
        endpoint.extra = self.extra()?;
        Ok(Prepared { endpoint, objective: self.objective(), tokens_per_word, corpus, broker, flags: self })
    }
}

/// Of English, by the tokenizers of the day.
const USUAL_TOKENS_PER_WORD: f64 = 1.35;

async fn named(
    url: &str,
    model: Option<&str>,
    key: Option<&str>,
    patience: Patience,
) -> anyhow::Result<Endpoint> {
    let mut endpoint = Endpoint::new(url, model.unwrap_or_default(), key, patience)?;
    if model.is_none() {
        endpoint.model = endpoint.first_model().await?;
    }
    Ok(endpoint)
}

impl Prepared {
    pub(crate) fn workload(&self, seed: u64) -> anyhow::Result<Workload> {
        let flags = &self.flags;
        if let Some(path) = &flags.prompts {
            return Ok(Workload::Prompts { prompts: read_prompts(path)?, max_tokens: flags.max_tokens });
        }
        if flags.trace.is_some() {
            return Ok(Workload::Replay(self.replay()?));
        }
        let words = |(few, many): (usize, usize)| {
            let words = |tokens: usize| (tokens as f64 / self.tokens_per_word).round().max(1.0) as usize;
            (words(few), words(many))
        };
        let zipf = flags.zipf.unwrap_or(0.0);
        let pool = if let Some(corpus) = &self.corpus {
            Pool::documents(corpus.clone(), zipf)
        } else if let Some(count) = flags.prefix_groups {
            let words = words(flags.tokens(&flags.prefix_tokens, "--prefix-tokens")?);
            Pool::groups(Groups { count, words, ratio: flags.prefix_ratio.unwrap_or(0.9), zipf }, seed)
        } else {
            let words = words(flags.tokens(&flags.document_tokens, "--document-tokens")?);
            Pool::documents(Corpus::synthetic(seed, flags.documents.unwrap_or(10), words), zipf)
        };
        Ok(Workload::Conversations(Box::new(Conversations {
            pool,
            turns: flags.turns()?,
            max_tokens: flags.max_tokens,
            think: flags.think(),
            broker: self.broker.clone().map(Broker::new),
            steady_start: flags.steady_start,
        })))
    }

    /// The trace, where one is replayed.
    pub(crate) fn replay(&self) -> anyhow::Result<Replay> {
        let flags = &self.flags;
        let mut trace = Trace::read(flags.trace.as_deref().context("--trace FILE")?)?;
        trace.requests.truncate(flags.trace_requests.unwrap_or(usize::MAX));
        let hash_tokens = flags.trace_block_tokens.unwrap_or(HASH_TOKENS);
        Ok(Replay::new(trace, hash_tokens, self.tokens_per_word, flags.max_tokens))
    }

    pub(crate) fn trace_speed(&self) -> f64 {
        self.flags.trace_speed.unwrap_or(1.0)
    }

    pub(crate) fn load(
        &self,
        seed: u64,
        names_session: bool,
        collector: Arc<Collector>,
    ) -> anyhow::Result<Load> {
        let decisions = self.flags.admin()?.map(Decisions::new).transpose()?;
        let names_session = names_session || self.flags.session_ids;
        let (endpoint, workload) = (self.endpoint.clone(), self.workload(seed)?);
        Ok(Load { endpoint, workload, names_session, decisions, seed, collector })
    }

    pub(crate) fn seed(&self) -> u64 {
        self.flags.seed
    }

    /// Everything it takes to do it again, secrets left out.
    pub(crate) fn conditions(&self) -> Value {
        let flags = &self.flags;
        let workload = match (&flags.prompts, &flags.trace) {
            (Some(path), _) => json!({"kind": "prompts", "file": path, "max_tokens": flags.max_tokens}),
            (_, Some(path)) => json!({
                "kind": "trace", "file": path, "speed": self.trace_speed(), "max_tokens": flags.max_tokens,
                "block_tokens": flags.trace_block_tokens.unwrap_or(HASH_TOKENS), "requests": flags.trace_requests,
            }),
            _ => json!({
                "kind": "conversations", "turns": flags.turns().unwrap_or_default(), "think_s": flags.think().mean_s(),
                "think": flags.think(), "max_tokens": flags.max_tokens, "corpus": flags.corpus,
                "documents": flags.documents.unwrap_or(10),
                "document_tokens": flags.document_tokens.as_deref().unwrap_or("3500-4000"),
                "prefix_groups": flags.prefix_groups, "prefix_ratio": flags.prefix_ratio,
                "prefix_tokens": flags.prefix_tokens, "zipf": flags.zipf.unwrap_or(0.0),
                "steady_start": flags.steady_start, "broker": flags.broker_url,
                "broker_model": self.broker.as_ref().map(|broker| &broker.model),
            }),
        };
        json!({
            "url": flags.url, "model": self.endpoint.model, "session_ids": flags.session_ids, "body": self.endpoint.extra,
            "tokens_per_word": (self.tokens_per_word * 1e3).round() / 1e3, "workload": workload,
            "ttft_slo_ms": flags.ttft_slo, "tpot_slo_ms": flags.tpot_slo, "silence_s": flags.silence,
            "timeout_s": flags.timeout,
        })
    }

    /// In a line.
    pub(crate) fn about(&self) -> String {
        let flags = &self.flags;
        let asked = match (&flags.prompts, &flags.trace) {
            (Some(path), _) => format!("prompts of {}", path.display()),
            (_, Some(path)) => format!("{} at {} times its speed", path.display(), self.trace_speed()),
            _ => {
                let (few, many) = flags.turns().unwrap_or_default();
                format!(
                    "conversations of {few} to {many} turns, think time {} s on average",
                    flags.think().mean_s()
                )
            }
        };
        format!("{} at {}: {asked}", self.endpoint.model, flags.url)
    }
}
