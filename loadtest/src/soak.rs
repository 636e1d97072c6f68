//! A steady load for long while engines come and go: does anything of the routers grow?

mod churn;
mod trend;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use self::churn::Churn;
pub use self::trend::Trend;
use crate::chaos::{
    Balancer, Bench, Conversations, Layout, Outcome, Reference, Rest, Script, Tally, at_rest, sum_of,
};
use crate::report::Table;

#[derive(Clone, Debug)]
pub struct Soak {
    pub layout: Layout,
    pub script: Script,
    pub how_long: Duration,
    /// Between two changes of the engines.
    pub churn_every: Duration,
}

const SAMPLE: Duration = Duration::from_secs(5);
/// What comes first is left out: caches fill.
const WARM_UP: f64 = 0.2;
const CONNECTIONS: usize = 4;
const MIB: f64 = (1 << 20) as f64;

/// What is looked at: its name, the series it is the sum of, and what it is divided by.
const LOOKED_AT: [(&str, &str, f64); 5] = [
    ("resident MiB", "process_resident_memory_bytes", MIB),
    ("open files", "process_open_fds", 1.0),
    ("tasks", "kvlane_tasks", 1.0),
    ("index MiB", "kvlane_index_bytes", MIB),
    ("idle connections", "kvlane_worker_idle_connections", 1.0),
];

/// What a router's memory is bounded by is small here, so that it is full when the warm-up is over.
pub const ROUTER_FLAGS: [&str; 1] = ["--set=tokenizer.cache_bytes=4194304"];

#[derive(Clone, Debug, Serialize)]
pub struct Line {
    pub router: usize,
    pub what: &'static str,
    pub trend: Option<Trend>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub seconds: f64,
    pub requests: u64,
    pub not_whole: u64,
    pub wrong_texts: u64,
    pub restarted: usize,
    pub added_and_removed: usize,
    pub lines: Vec<Line>,
    pub rest: Rest,
}

impl Soak {
    /// Runs it on a bench of nothing yet; what was started is the bench's to stop.
    pub async fn run(&self, bench: &mut Bench, mut say: impl FnMut(String)) -> anyhow::Result<Report> {
        let layout = &self.layout;
        let reference = Arc::new(Reference::start(layout.answer_tokens).await?);
        let routers: Vec<SocketAddr> = (0..layout.routers).map(|n| layout.router(n)).collect();
        let most = self.script.concurrency * CONNECTIONS;
        let balancer = Arc::new(Balancer::start(layout.balancer(), &routers, most).await?);
        bench.start_all().await?;
        let tally = Arc::new(Tally::default());
        let talking = Conversations::start(self.script.clone(), balancer, reference, tally.clone());
        let mut samples = vec![vec![Vec::new(); LOOKED_AT.len()]; layout.routers];
        let mut churn = Churn::default();
        let (began, mut next_sample) = (Instant::now(), Instant::now());
        let mut next_change = began + self.churn_every;
        while began.elapsed() < self.how_long {
            if Instant::now() >= next_sample {
                next_sample += SAMPLE;
                sample(bench, began.elapsed().as_secs_f64(), &mut samples).await?;
                bench.children.check()?;
            }
            if Instant::now() >= next_change {
                next_change += self.churn_every;
                let done = churn.change(bench).await?;
                say(format!("{:7.1} s  {done}; {} requests", began.elapsed().as_secs_f64(), tally.all()));
                // What a change took is not made up for.
                next_sample = next_sample.max(Instant::now());
            }
            tokio::time::sleep_until(next_sample.min(next_change)).await;
        }
        talking.finish().await?;
        let rest = at_rest(bench).await?;
        let warm = self.how_long.as_secs_f64() * WARM_UP;
        let mut lines = Vec::new();
        for (router, samples) in samples.iter().enumerate() {
            for ((what, ..), samples) in LOOKED_AT.iter().zip(samples) {
                let warm: Vec<(f64, f64)> =
                    samples.iter().copied().filter(|(time, _)| *time >= warm).collect();
                lines.push(Line { router, what, trend: Trend::of(&warm) });
            }
        }
        Ok(Report {
            seconds: tally.elapsed().as_secs_f64(),
            requests: tally.all(),
            not_whole: tally.all() - tally.count(Outcome::Whole),
            wrong_texts: tally.wrong_texts(),
            restarted: churn.restarted,
            added_and_removed: churn.added_and_removed,
            lines,
            rest,
        })
    }
}

async fn sample(bench: &Bench, time: f64, samples: &mut [Vec<Vec<(f64, f64)>>]) -> anyhow::Result<()> {
    for (router, samples) in samples.iter_mut().enumerate() {
        let text = bench.metrics(router).await?;
        for ((_, series, unit), samples) in LOOKED_AT.iter().zip(samples) {
            if let Some(value) = sum_of(&text, series) {
                samples.push((time, value / unit));
            }
        }
    }
    Ok(())
}

impl Report {
    pub fn is_fine(&self) -> bool {
        let level = |line: &Line| line.trend.is_some_and(|trend| trend.within_noise);
        self.lines.iter().all(level)
            && self.not_whole == 0
            && self.wrong_texts == 0
            && self.rest.complaints.is_empty()
    }

    /// For people.
    pub fn text(&self) -> String {
        let title = format!(
            "{} requests in {:.0} s, {} not whole at the first try, {} with a wrong text; {} engines restarted, {} added and removed",
            self.requests,
            self.seconds,
            self.not_whole,
            self.wrong_texts,
            self.restarted,
            self.added_and_removed
        );
        let mut table = Table::new(&title, &["router", "what", "mean", "per hour", "±", "growth", "verdict"]);
        for line in &self.lines {
            let mut row = vec![line.router.to_string(), line.what.to_owned()];
            match line.trend {
                Some(trend) => row.extend([
                    format!("{:.2}", trend.mean),
                    format!("{:+.3}", trend.slope_per_hour),
                    format!("{:.3}", trend.plus_minus),
                    format!("{:+.2} %", trend.growth * 100.0),
                    (if trend.within_noise { "within noise" } else { "GROWS" }).to_owned(),
                ]),
                None => row.push("too few samples".to_owned()),
            }
            table.rows.push(row);
        }
        let mut text = table.terminal();
        for complaint in &self.rest.complaints {
            text += &format!("at rest: {complaint}\n");
        }
        text
    }
}
