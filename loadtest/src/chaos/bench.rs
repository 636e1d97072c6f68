//! NATS, engines, bridges and routers as processes, on ports counted from one.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::http::Http;
use crate::processes::Children;

/// One process of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    Nats,
    Worker(usize),
    /// The bridge of the worker of that number.
    Bridge(usize),
    Router(usize),
}

impl Part {
    pub fn kind(self) -> &'static str {
        match self {
            Self::Nats => "nats",
            Self::Worker(_) => "worker",
            Self::Bridge(_) => "bridge",
            Self::Router(_) => "router",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nats => write!(out, "nats"),
            Self::Worker(n) | Self::Bridge(n) | Self::Router(n) => write!(out, "{}-{n}", self.kind()),
        }
    }
}

/// What there is, and where.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The balancer's; all others are counted from it, [`Layout::PORTS`] in all.
    pub first_port: u16,
    pub workers: usize,
    /// The last so many workers tell of their caches through a bridge and NATS, the others themselves.
    pub bridged: usize,
    pub routers: usize,
    /// How many times as fast as the hardware they stand for the engines are.
    pub speed: f64,
    /// How long answers are.
    pub answer_tokens: (usize, usize),
    pub nats_server: PathBuf,
    /// Where the programs are; none for beside this one.
    pub programs: Option<PathBuf>,
    pub router_flags: Vec<String>,
}

/// How far above the first port each kind begins. There are ten of each.
const NATS: u16 = 1;
const ROUTERS: u16 = 10;
const ADMINS: u16 = 20;
const WORKERS: u16 = 30;
const EVENTS: u16 = 40;
const REPLAYS: u16 = 50;
const OF_A_KIND: usize = 10;
/// Batches of events an engine keeps for replays: longer than any run here needs, so that whoever comes late learns all.
const BUFFER_STEPS: usize = 1_000_000;
/// KV blocks of an engine: few enough that some are evicted.
const KV_BLOCKS: usize = 4096;
pub(super) const BLOCK_TOKENS: u32 = 32;
const PATIENCE: Duration = Duration::from_secs(2);
const MOST_BYTES: usize = 4 << 20;
/// How long a start may take.
const START: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);
/// How long one may take to end in peace: the routers' drain wait and timeout, and some.
const END: Duration = Duration::from_secs(40);

impl Layout {
    pub const PORTS: u16 = 60;

    pub fn new(first_port: u16, nats_server: PathBuf) -> Self {
        Self {
            first_port,
            workers: 4,
            bridged: 2,
            routers: 2,
            speed: 2.0,
            answer_tokens: (16, 40),
            nats_server,
            programs: None,
            router_flags: Vec::new(),
        }
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.first_port > 0 && self.first_port <= u16::MAX - Self::PORTS,
            "the first port is {}, expected 1 to {}",
            self.first_port,
            u16::MAX - Self::PORTS
        );
        // One more worker may be added while it runs.
        ensure!(
            (2..OF_A_KIND).contains(&self.workers) && self.bridged <= self.workers,
            "workers are {}, {} of them bridged, expected 2 to {}, and no more bridged",
            self.workers,
            self.bridged,
            OF_A_KIND - 1
        );
        ensure!(
            (1..=OF_A_KIND).contains(&self.routers),
            "routers are {}, expected 1 to {OF_A_KIND}",
            self.routers
        );
        ensure!((0.01..=1000.0).contains(&self.speed), "speed is {}, expected 0.01 to 1000", self.speed);
        Ok(())
    }

    pub fn balancer(&self) -> SocketAddr {
        self.at(0)
    }

    pub fn router(&self, n: usize) -> SocketAddr {
        self.at(ROUTERS + n as u16)
    }

    pub fn admin(&self, n: usize) -> SocketAddr {
        self.at(ADMINS + n as u16)
    }

    pub fn worker(&self, n: usize) -> SocketAddr {
        self.at(WORKERS + n as u16)
    }

    /// Where the worker tells of its cache, and where it tells of the past.
    pub fn events(&self, n: usize) -> (SocketAddr, SocketAddr) {
        (self.at(EVENTS + n as u16), self.at(REPLAYS + n as u16))
    }

    pub fn is_bridged(&self, worker: usize) -> bool {
        (self.workers - self.bridged..self.workers).contains(&worker)
    }

    fn at(&self, above: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.first_port + above))
    }

    /// Everything, in the order of its start.
    pub fn parts(&self) -> Vec<Part> {
        let workers = (0..self.workers).map(Part::Worker);
        let bridges = (0..self.workers).filter(|n| self.is_bridged(*n)).map(Part::Bridge);
        let routers = (0..self.routers).map(Part::Router);
        [Part::Nats].into_iter().chain(workers).chain(bridges).chain(routers).collect()
    }

    fn flags(&self, part: Part, file: &Path) -> (PathBuf, Vec<String>) {
        let nats = format!("--nats-url=nats://{}", self.at(NATS));
        let (program, flags) = match part {
            Part::Nats => {
                let port = self.at(NATS).port().to_string();
                let flags = ["-a", "127.0.0.1", "-p", &port].map(str::to_owned).to_vec();
                return (self.nats_server.clone(), flags);
            }
            Part::Worker(n) => {
                let ((few, many), (events, replay)) = (self.answer_tokens, self.events(n));
                let flags = vec![
                    format!("--port={}", self.worker(n).port()),
                    format!("--events-port={}", events.port()),
                    format!("--replay-port={}", replay.port()),
                    format!("--speed={}", self.speed),
                    format!("--answer-tokens={few}..{many}"),
                    format!("--kv-blocks={KV_BLOCKS}"),
                    format!("--block-size={BLOCK_TOKENS}"),
                    format!("--buffer-steps={BUFFER_STEPS}"),
                    format!("--seed={n}"),
                ];
                ("kvlane-worker", flags)
            }
            Part::Bridge(n) => ("kvlane-bridge", vec![format!("--url=http://{}", self.worker(n)), nats]),
            Part::Router(n) => {
                let mut flags = vec![
                    "--host=127.0.0.1".to_owned(),
                    format!("--port={}", self.router(n).port()),
                    format!("--admin-port={}", self.admin(n).port()),
                    format!("--workers-file={}", file.display()),
                    nats,
                    "--set=workers.refresh_ms=500".to_owned(),
                    "--set=log.access=false".to_owned(),
                ];
                flags.extend(self.router_flags.iter().cloned());
                ("kvlane", flags)
            }
        };
        (program.into(), flags)
    }
}

/// A NATS server: the one that was named, the tests' own, or whichever is on the path.
pub fn nats_server(named: Option<&Path>) -> PathBuf {
    let own = Path::new(".tools/venv/bin/nats-server");
    match named {
        Some(path) => path.to_owned(),
        None if own.exists() => own.to_owned(),
        None => "nats-server".into(),
    }
}

/// All of it, running. What was killed is not started again by itself.
#[derive(Debug)]
pub struct Bench {
    pub layout: Layout,
    pub children: Children,
    http: Http,
    /// Where routers read who is there besides those on NATS.
    file: PathBuf,
}

impl Bench {
    /// Nothing runs yet.
    pub fn new(of: &str, layout: Layout) -> anyhow::Result<Self> {
        layout.check()?;
        let children = match &layout.programs {
            Some(dir) => Children::of_dir(of, dir),
            None => Children::new(of),
        };
        let file = std::env::temp_dir().join(format!("kvlane-{of}-{}.workers.toml", std::process::id()));
        let bench = Self { children, http: Http::new(PATIENCE)?, file, layout };
        let direct: Vec<usize> = (0..bench.layout.workers).filter(|n| !bench.layout.is_bridged(*n)).collect();
        bench.list(&direct)?;
        Ok(bench)
    }

    /// Starts everything and waits until every router knows every worker and what it holds.
    pub async fn start_all(&mut self) -> anyhow::Result<()> {
        for part in self.layout.parts() {
            ensure!(self.is_free(part).await, "the port of {part} is taken; --first-port moves all of them");
            self.start(part)?;
        }
        for n in 0..self.layout.routers {
            self.until_ready(n, self.layout.workers).await?;
        }
        Ok(())
    }

    async fn is_free(&self, part: Part) -> bool {
        let address = match part {
            Part::Nats => self.layout.at(NATS),
            Part::Worker(n) => self.layout.worker(n),
            Part::Router(n) => self.layout.router(n),
            Part::Bridge(_) => return true,
        };
        tokio::net::TcpStream::connect(address).await.is_err()
    }

    pub fn start(&mut self, part: Part) -> anyhow::Result<()> {
        let (program, flags) = self.layout.flags(part, &self.file);
        self.children.start(&part.to_string(), &program, &flags)
    }

    pub async fn kill(&mut self, part: Part) -> anyhow::Result<()> {
        self.children.kill(&part.to_string()).await
    }

    pub async fn terminate(&mut self, part: Part) -> anyhow::Result<ExitStatus> {
        self.children.terminate(&part.to_string(), END).await
    }

    /// Those who are not announced on NATS are these, from the routers' next look on.
    pub fn list(&self, workers: &[usize]) -> anyhow::Result<()> {
        let urls: Vec<String> =
            workers.iter().map(|n| format!("'http://{}'", self.layout.worker(*n))).collect();
        // Renamed into place: nobody reads half of it.
        let made = self.file.with_extension("new");
        let at = || self.file.display().to_string();
        std::fs::write(&made, format!("workers = [{}]\n", urls.join(", "))).with_context(at)?;
        std::fs::rename(&made, &self.file).with_context(at)
    }

    async fn get(&self, at: SocketAddr, path: &str) -> anyhow::Result<Value> {
        let bytes = self.http.get(&format!("http://{at}{path}"), MOST_BYTES).await?;
        serde_json::from_slice(&bytes).with_context(|| path.to_owned())
    }

    pub async fn is_ready(&self, router: usize) -> bool {
        self.http.get(&format!("http://{}/ready", self.layout.router(router)), 1 << 16).await.is_ok()
    }

    /// Workers that a router could send something to now.
    pub async fn ready_workers(&self, router: usize) -> usize {
        let health = self.get(self.layout.router(router), "/health").await.unwrap_or_default();
        health["workers"]["ready"].as_u64().unwrap_or(0) as usize
    }

    /// Until a router is ready, and so many of its workers; how long that took.
    pub async fn until_ready(&mut self, router: usize, workers: usize) -> anyhow::Result<Duration> {
        let began = Instant::now();
        while !(self.is_ready(router).await && self.ready_workers(router).await >= workers) {
            self.children.check()?;
            ensure!(
                began.elapsed() < START,
                "router-{router} and {workers} workers are not ready after {START:?}; the log is {}",
                self.children.log().display()
            );
            tokio::time::sleep(LOOK).await;
        }
        Ok(began.elapsed())
    }

    /// What a router says of its workers.
    pub async fn workers(&self, router: usize) -> anyhow::Result<Vec<Value>> {
        let mut answer = self.get(self.layout.admin(router), "/admin/workers").await?;
        let workers = answer["workers"].as_array_mut().map(std::mem::take);
        workers.context("/admin/workers has no workers")
    }

    /// Has a router send nothing new to a worker, or send to it again.
    pub async fn drain(&self, router: usize, worker: usize, draining: bool) -> anyhow::Result<()> {
        let (admin, name) = (self.layout.admin(router), self.layout.worker(worker));
        let url = format!("http://{admin}/admin/drain/{name}");
        self.http.post(&url, &json!({ "draining": draining })).await.map(drop)
    }

    /// The sum of a router's series that begin so; none where none does.
    pub async fn metric(&self, router: usize, series: &str) -> Option<f64> {
        sum_of(&self.metrics(router).await.ok()?, series)
    }

    /// Everything a router counts, in Prometheus' text form.
    pub async fn metrics(&self, router: usize) -> anyhow::Result<String> {
        let url = format!("http://{}/metrics", self.layout.admin(router));
        let text = self.http.get(&url, MOST_BYTES).await?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    pub async fn stop(&mut self) {
        self.children.stop().await;
    }
}

/// The sum of the series that begin so.
pub(crate) fn sum_of(text: &str, series: &str) -> Option<f64> {
    let lines = text.lines().filter(|line| line.starts_with(series));
    let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}
