//! The worker from the outside: what it is made of, who listens, and how it ends.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::driver::{Driver, DriverParts};
use super::events::Events;
use super::faults::Switches;
use super::generate::Author;
use super::metrics::Dashboard;
use super::options::{OptionsError, WorkerOptions};
use super::serving::Serving;
use crate::model::{Model, ModelError};
use crate::sim::{Lexicon, LexiconError};
use crate::vllm::publisher::{Endpoint, PublishError};

/// Commands on their way to the engine; more wait at their senders.
const COMMANDS: usize = 1024;

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
            author: Arc::new(Author { model, lexicon, max_len }),
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
