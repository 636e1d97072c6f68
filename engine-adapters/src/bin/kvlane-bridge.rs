//! `kvlane-bridge`: the sidecar that publishes one engine's KV events on NATS, in Dynamo's form.

#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, reason = "a command line program")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, ValueEnum};
use kvlane_engine_adapters::bridge::{Sidecar, SidecarConfig};
use kvlane_engine_adapters::dynamo::{Scope, Subjects};
use kvlane_engine_adapters::engine_facts::{Engine, EventEndpoint, ID_BITS, instance_of};
use kvlane_engine_adapters::feed::FeedClock;
use kvlane_engine_adapters::nats::{NatsAccess, NatsConnection, NatsIdentity};
use kvlane_engine_adapters::tls::{ClientFiles, ClientTls, KeyPair, NamedFile};
use kvlane_engine_adapters::{process, secret};
use kvlane_indexer::BlockSize;
use tokio_util::sync::CancellationToken;

/// Publishes one engine's KV events on NATS, answers snapshot requests, and announces the engine to routers.
#[derive(Parser)]
#[command(name = "kvlane-bridge", version, max_term_width = 110)]
struct Cli {
    /// Which engine's dialect
    #[arg(long, value_enum, default_value_t = Dialect::Vllm, help_heading = "Engine")]
    engine: Dialect,
    /// The engine's API
    #[arg(
        long,
        value_name = "http://HOST:PORT",
        default_value = "http://127.0.0.1:8000",
        help_heading = "Engine"
    )]
    url: String,
    /// The same as routers reach it [default: --url]
    #[arg(long, value_name = "http://HOST:PORT", env = "KVLANE_ADVERTISED_URL", help_heading = "Engine")]
    advertised_url: Option<String>,
    /// Where the engine publishes KV events [default: asked from the engine]
    #[arg(long, value_name = "tcp://HOST:PORT", help_heading = "Engine")]
    events: Option<String>,
    /// Where it replays them [default: asked from the engine]
    #[arg(long, value_name = "tcp://HOST:PORT", requires = "events", help_heading = "Engine")]
    replay: Option<String>,
    #[arg(long, default_value = "", requires = "events", help_heading = "Engine")]
    topic: String,
    /// Tokens in a block [default: asked from the engine]
    #[arg(long, value_name = "TOKENS", env = "DYN_KV_CACHE_BLOCK_SIZE", help_heading = "Engine")]
    block_size: Option<u32>,
    /// Requests the engine runs at a time (vLLM's max_num_seqs, TensorRT-LLM's max_batch_size)
    #[arg(long, help_heading = "Engine")]
    slots: Option<u32>,

    /// File with the API key that the engine asks for
    #[arg(long, value_name = "FILE", env = "KVLANE_PROXY_WORKER_API_KEY_FILE", help_heading = "Engine")]
    worker_api_key_file: Option<PathBuf>,
    /// PEM file with who must have signed the engine's certificate, for https [default: whom the system trusts]
    #[arg(long, value_name = "FILE", env = "KVLANE_TLS_WORKER_CA", help_heading = "Engine")]
    worker_ca: Option<PathBuf>,
    /// PEM file with the certificate to show to the engine
    #[arg(
        long,
        value_name = "FILE",
        env = "KVLANE_TLS_WORKER_CERT",
        requires = "worker_key",
        help_heading = "Engine"
    )]
    worker_cert: Option<PathBuf>,
    /// PEM file with its private key
    #[arg(
        long,
        value_name = "FILE",
        env = "KVLANE_TLS_WORKER_KEY",
        requires = "worker_cert",
        help_heading = "Engine"
    )]
    worker_key: Option<PathBuf>,

    /// The NATS server
    #[arg(
        long,
        env = "NATS_SERVER",
        hide_env_values = true,
        default_value = "nats://127.0.0.1:4222",
        help_heading = "NATS"
    )]
    nats_url: String,
    /// PEM file with who must have signed its certificate [default: whom the system trusts]
    #[arg(long, value_name = "FILE", env = "NATS_TLS_CA", help_heading = "NATS")]
    nats_tls_ca: Option<PathBuf>,
    /// PEM file with the certificate to show to it
    #[arg(
        long,
        value_name = "FILE",
        env = "NATS_TLS_CERT",
        requires = "nats_tls_key",
        help_heading = "NATS"
    )]
    nats_tls_cert: Option<PathBuf>,
    /// PEM file with its private key
    #[arg(
        long,
        value_name = "FILE",
        env = "NATS_TLS_KEY",
        requires = "nats_tls_cert",
        help_heading = "NATS"
    )]
    nats_tls_key: Option<PathBuf>,
    /// Credentials file (JWT and seed)
    #[arg(
        long,
        value_name = "FILE",
        env = "NATS_AUTH_CREDENTIALS_FILE",
        group = "identity",
        help_heading = "NATS"
    )]
    nats_creds: Option<PathBuf>,
    /// File with the seed of a user's nkey, or the seed itself
    #[arg(
        long,
        value_name = "FILE",
        env = "NATS_AUTH_NKEY",
        hide_env_values = true,
        group = "identity",
        help_heading = "NATS"
    )]
    nats_nkey: Option<String>,
    /// File with a token
    #[arg(
        long,
        value_name = "FILE",
        env = "KVLANE_EVENTS_NATS_TOKEN_FILE",
        group = "identity",
        help_heading = "NATS"
    )]
    nats_token_file: Option<PathBuf>,
    /// Marks the worker in events [default: made from the advertised URL]
    #[arg(long, help_heading = "NATS")]
    worker_id: Option<u64>,
    #[arg(long, env = "DYN_NAMESPACE", default_value = "dynamo", help_heading = "NATS")]
    namespace: String,
    #[arg(long, env = "DYN_COMPONENT", default_value = "backend", help_heading = "NATS")]
    component: String,
    #[arg(long, env = "DYN_ENDPOINT", default_value = "generate", help_heading = "NATS")]
    endpoint: String,
    /// Events that may wait to be published; more are dropped and made good by a snapshot
    #[arg(long, value_name = "EVENTS", default_value_t = 65_536, help_heading = "NATS")]
    outbox: usize,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Dialect {
    Vllm,
    Sglang,
    Trtllm,
}

impl Cli {
    /// Whom to trust as the engine, and what to show it.
    fn engine_files(&self) -> ClientFiles {
        let own = NamedFile::of("--worker-cert", self.worker_cert.as_ref())
            .zip(NamedFile::of("--worker-key", self.worker_key.as_ref()))
            .map(|(certificate, key)| KeyPair { certificate, key });
        ClientFiles { ca: NamedFile::of("--worker-ca", self.worker_ca.as_ref()), own }
    }

    /// How to get into NATS.
    fn nats_access(&self) -> NatsAccess {
        let own = NamedFile::of("--nats-tls-cert", self.nats_tls_cert.as_ref())
            .zip(NamedFile::of("--nats-tls-key", self.nats_tls_key.as_ref()))
            .map(|(certificate, key)| KeyPair { certificate, key });
        let creds = NamedFile::of("--nats-creds", self.nats_creds.as_ref()).map(NatsIdentity::Credentials);
        let nkey = self.nats_nkey.as_ref().map(|nkey| NatsIdentity::nkey("--nats-nkey", nkey));
        let token =
            NamedFile::of("--nats-token-file", self.nats_token_file.as_ref()).map(NatsIdentity::Token);
        NatsAccess {
            tls: ClientFiles { ca: NamedFile::of("--nats-tls-ca", self.nats_tls_ca.as_ref()), own },
            identity: creds.or(nkey).or(token),
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    process::log_to_stderr();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.context("no runtime").and_then(|runtime| runtime.block_on(run(cli))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kvlane-bridge: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Between two looks at certificates.
const LOOK_AT_FILES: Duration = Duration::from_secs(5);

async fn run(cli: Cli) -> anyhow::Result<()> {
    let access = cli.nats_access();
    let tls = ClientTls::load(cli.engine_files())?;
    let authorization = cli.worker_api_key_file.as_deref().map(secret::bearer_in).transpose();
    let authorization = authorization.map_err(|error| anyhow::anyhow!("--worker-api-key-file: {error}"))?;
    let advertised_url = cli.advertised_url.unwrap_or_else(|| cli.url.clone());
    let block_size = match cli.block_size {
        Some(tokens) => Some(BlockSize::new(tokens).context("--block-size is 0, expected 1 or more tokens")?),
        None => None,
    };
    anyhow::ensure!(cli.outbox > 0, "--outbox is 0, expected 1 or more events");
    let events =
        cli.events.map(|events| EventEndpoint { rank: 0, events, replay: cli.replay, topic: cli.topic });
    let config = SidecarConfig {
        engine: match cli.engine {
            Dialect::Vllm => Engine::Vllm,
            Dialect::Sglang => Engine::Sglang,
            Dialect::Trtllm => Engine::Trtllm,
        },
        worker_id: cli.worker_id.unwrap_or_else(|| instance_of(&advertised_url)),
        url: cli.url,
        advertised_url,
        events: events.into_iter().collect(),
        block_size,
        slots: cli.slots,
        outbox: cli.outbox,
        publisher: rand::random::<u64>() & ID_BITS,
        tls: tls.clone(),
        authorization,
    };
    let scope = Scope { namespace: cli.namespace, component: cli.component, endpoint: cli.endpoint };
    let NatsConnection { client, connected, .. } = access.connect(&cli.nats_url, "kvlane-bridge").await?;
    let sidecar = Sidecar {
        config,
        client,
        connected,
        subjects: Subjects::new(&scope),
        clock: FeedClock::starting(process::since_1970()),
    };
    let stop = CancellationToken::new();
    if let Some(following) = tls.follow(LOOK_AT_FILES, stop.clone(), |_| {}) {
        tokio::spawn(following);
    }
    let stopping = stop.clone();
    tokio::spawn(async move {
        if let Err(error) = process::asked_to_stop().await {
            tracing::error!(%error, "signals cannot be heard");
        }
        stopping.cancel();
    });
    Ok(sidecar.run(stop).await?)
}
