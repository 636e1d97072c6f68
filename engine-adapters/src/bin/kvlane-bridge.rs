//! `kvlane-bridge`: the sidecar that publishes one engine's KV events on NATS, in Dynamo's form.

#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, reason = "a command line program")]

use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, ValueEnum};
use kvlane_engine_adapters::bridge::{Sidecar, SidecarConfig};
use kvlane_engine_adapters::dynamo::{Scope, Subjects};
use kvlane_engine_adapters::engine_facts::{Engine, EventEndpoint, ID_BITS, instance_of};
use kvlane_engine_adapters::feed::FeedClock;
use kvlane_engine_adapters::{nats, process};
use kvlane_indexer::BlockSize;
use tokio_util::sync::CancellationToken;

/// Publishes one engine's KV events on NATS, answers snapshot requests, and announces the engine to routers.
#[derive(Debug, Parser)]
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

    /// The NATS server
    #[arg(long, env = "NATS_SERVER", default_value = "nats://127.0.0.1:4222", help_heading = "NATS")]
    nats_url: String,
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

async fn run(cli: Cli) -> anyhow::Result<()> {
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
    };
    let scope = Scope { namespace: cli.namespace, component: cli.component, endpoint: cli.endpoint };
    let (client, connected) = nats::connect(&cli.nats_url, "kvlane-bridge").await?;
    let sidecar = Sidecar {
        config,
        client,
        connected,
        subjects: Subjects::new(&scope),
        clock: FeedClock::starting(process::since_1970()),
    };
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        if let Err(error) = process::asked_to_stop().await {
            tracing::error!(%error, "signals cannot be heard");
        }
        stopping.cancel();
    });
    Ok(sidecar.run(stop).await?)
}
