//! `kvlane-worker`: one or many simulated engines behind OpenAI servers that speak as vLLM does.

#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, reason = "a command line program")]

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, ValueEnum};
use kvlane_engine_adapters::process;
use kvlane_engine_adapters::sim::Calibration;
use kvlane_engine_adapters::sim::worker::{EventOptions, Worker, WorkerOptions};
use kvlane_engine_adapters::vllm::publisher::{Endpoint, PublisherConfig};
use kvlane_engine_adapters::vllm::wire::{Encoder, Naming, Spelling};
use tokio_util::sync::CancellationToken;

/// Simulated LLM engines that behave like vLLM: continuous batching over a finite prefix cache, OpenAI's API,
/// KV events. Every figure they report is simulated.
#[derive(Debug, Parser)]
#[command(name = "kvlane-worker", version, max_term_width = 110)]
struct Cli {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1", help_heading = "Serving")]
    host: IpAddr,
    /// First worker's port; the others take the next ones
    #[arg(long, default_value_t = 8101, help_heading = "Serving")]
    port: u16,
    /// Workers in this process
    #[arg(long, default_value_t = 1, help_heading = "Serving")]
    workers: u16,
    /// Largest request body, in MiB
    #[arg(long, default_value_t = 45, help_heading = "Serving")]
    body_limit_mib: usize,

    /// Asked of whoever uses /v1, as vLLM does
    #[arg(long, value_name = "KEY", env = "VLLM_API_KEY", hide_env_values = true, help_heading = "Serving")]
    api_key: Option<String>,

    /// Directory with tokenizer.json and a chat template [default: a small built-in model]
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    model_path: Option<PathBuf>,
    /// Name requests use [default: the directory's]
    #[arg(long, value_name = "NAME", help_heading = "Model")]
    model_name: Option<String>,
    /// Adapters that may be asked for as models; may be repeated
    #[arg(long = "lora", value_name = "NAME", help_heading = "Model")]
    lora_names: Vec<String>,
    /// Tokens a prompt and its answer may have together [default: the model's]
    #[arg(long, value_name = "TOKENS", help_heading = "Model")]
    max_model_len: Option<usize>,
    /// How long answers are when nothing ends them earlier
    #[arg(long, value_name = "FROM..TO", default_value = "64..512", value_parser = range, help_heading = "Model")]
    answer_tokens: RangeInclusive<usize>,

    /// Calibration: h200-llama70b-fp8, h200-llama70b-draft8b, h200-llama70b-eagle3, h100-tp2-llama70b, instant,
    /// or a TOML file of that form
    #[arg(long, value_name = "NAME|FILE", default_value = Calibration::DEFAULT, help_heading = "Engine")]
    engine: String,
    /// How many times as fast as real time
    #[arg(long, default_value_t = 1.0, help_heading = "Engine")]
    speed: f64,
    /// Slots, instead of the calibration's
    #[arg(long, value_name = "SEQUENCES", help_heading = "Engine")]
    max_batch: Option<usize>,
    /// KV blocks, instead of the calibration's
    #[arg(long, value_name = "BLOCKS", help_heading = "Engine")]
    kv_blocks: Option<usize>,
    /// Tokens in a block, instead of the calibration's
    #[arg(long, value_name = "TOKENS", help_heading = "Engine")]
    block_size: Option<usize>,
    /// Adds the delay between client and engine that the reference deployment had
    #[arg(long, help_heading = "Engine")]
    outside_delay: bool,
    /// Equal seeds and equal requests at equal times give equal steps
    #[arg(long, default_value_t = 0, help_heading = "Engine")]
    seed: u64,

    /// First worker's port for KV events over ZeroMQ; 0 for none
    #[arg(long, value_name = "PORT", default_value_t = 5557, help_heading = "KV events")]
    events_port: u16,
    /// First worker's port for replays
    #[arg(long, value_name = "PORT", default_value_t = 5657, help_heading = "KV events")]
    replay_port: u16,
    /// Sends KV events to a subscriber that has bound there, instead of binding
    #[arg(long, value_name = "tcp://HOST:PORT", help_heading = "KV events")]
    events_connect: Option<String>,
    #[arg(long, default_value = "kv-events", help_heading = "KV events")]
    topic: String,
    /// Batches kept for replay
    #[arg(long, default_value_t = 10_000, help_heading = "KV events")]
    buffer_steps: usize,
    /// Whose spelling: maps as vLLM 0.24 and later, arrays as 0.23
    #[arg(long, value_enum, default_value_t = Spell::Maps, help_heading = "KV events")]
    event_spelling: Spell,
    /// Block names on the wire
    #[arg(long, value_enum, default_value_t = Name::Ints, help_heading = "KV events")]
    block_names: Name,
    /// Announces and removes some blocks twice, as vLLM does for second copies
    #[arg(long, help_heading = "KV events")]
    second_copies: bool,
    /// Keeps this many events for POST /kv_cache_events, as TensorRT-LLM does
    #[arg(long, value_name = "EVENTS", help_heading = "KV events")]
    trtllm_events: Option<usize>,

    /// Opens /faults, where tests can make the worker fail
    #[arg(long, help_heading = "Tests")]
    fault_switches: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Spell {
    Maps,
    Arrays,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    Ints,
    Bytes,
}

fn range(text: &str) -> Result<RangeInclusive<usize>, String> {
    let parts = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..=to.parse().ok()?));
    parts.ok_or_else(|| "expected FROM..TO, such as 64..512".to_owned())
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    process::log_to_stderr();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let result = runtime.context("no runtime").and_then(|runtime| runtime.block_on(run(&cli)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kvlane-worker: {error:#}");
            ExitCode::from(2)
        }
    }
}

async fn run(cli: &Cli) -> anyhow::Result<()> {
    anyhow::ensure!(cli.workers > 0, "--workers is 0, expected 1 or more");
    let stop = CancellationToken::new();
    let mut workers = Vec::new();
    for number in 0..cli.workers {
        let options = cli.options(number)?;
        let (name, engine) = (options.name.clone(), options.calibration.name.clone());
        let worker = Worker::start(options, process::since_1970(), stop.clone()).await?;
        tracing::info!(
            worker = name,
            engine,
            speed = cli.speed,
            events = worker.events_address().map(tracing::field::display),
            replay = worker.replay_address().map(tracing::field::display),
            "simulated worker on http://{}",
            worker.address()
        );
        workers.push(worker);
    }
    let all_dead = async {
        for worker in &workers {
            worker.stopped().await;
        }
    };
    tokio::select! {
        asked = process::asked_to_stop() => asked?,
        () = all_dead => anyhow::bail!("every worker was killed by a fault switch"),
    }
    stop.cancel();
    for worker in &workers {
        worker.stopped().await;
    }
    Ok(())
}

impl Cli {
    fn options(&self, number: u16) -> anyhow::Result<WorkerOptions> {
        let port = |flag: &str, first: u16| {
            (if first == 0 { Some(0) } else { first.checked_add(number) })
                .with_context(|| format!("{flag} {first}: no ports left for {} workers", self.workers))
        };
        let mut calibration = match std::fs::read_to_string(&self.engine) {
            Ok(text) => Calibration::parse(&self.engine, &text)?,
            Err(_) => Calibration::preset(&self.engine)?,
        };
        calibration.outside.enabled |= self.outside_delay;
        for (setting, value) in [
            (&mut calibration.max_batch, self.max_batch),
            (&mut calibration.kv_blocks, self.kv_blocks),
            (&mut calibration.block_tokens, self.block_size),
        ] {
            *setting = value.unwrap_or(*setting);
        }
        calibration.validate()?;
        let spelling = match self.event_spelling {
            Spell::Maps => Spelling::Maps,
            Spell::Arrays => Spelling::Arrays,
        };
        let endpoint = match &self.events_connect {
            Some(endpoint) => Some(Endpoint::Connect(endpoint.clone())),
            None if self.events_port == 0 => None,
            None => {
                Some(Endpoint::Bind(SocketAddr::new(self.host, port("--events-port", self.events_port)?)))
            }
        };
        let publish = match endpoint {
            None => None,
            Some(endpoint) => Some(PublisherConfig {
                endpoint,
                replay: Some(SocketAddr::new(self.host, port("--replay-port", self.replay_port)?)),
                topic: self.topic.clone(),
                buffer_steps: self.buffer_steps,
                spelling,
            }),
        };
        let naming = match self.block_names {
            Name::Ints => Naming::Ints,
            Name::Bytes => Naming::Bytes,
        };
        Ok(WorkerOptions {
            name: format!("worker-{number}"),
            address: SocketAddr::new(self.host, port("--port", self.port)?),
            model_path: self.model_path.clone(),
            model_name: self.model_name.clone(),
            lora_names: self.lora_names.clone(),
            max_model_len: self.max_model_len,
            speed: self.speed,
            seed: self.seed.wrapping_add(u64::from(number)),
            answer_tokens: self.answer_tokens.clone(),
            events: EventOptions {
                publish,
                encoder: Encoder { spelling, naming, data_parallel_rank: 0 },
                second_copies: self.second_copies,
                trtllm_buffer: self.trtllm_events,
            },
            fault_switches: self.fault_switches,
            api_key: self.api_key.clone(),
            max_body_bytes: self.body_limit_mib << 20,
            ..WorkerOptions::new(calibration)
        })
    }
}
