//! A whole run: everything started, conversations, kills, calm, rest.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::balancer::Balancer;
use super::bench::{Bench, Layout, sum_of};
use super::conversations::{Conversations, Script};
use super::kills::{Killer, Rhythm};
use super::reference::Reference;
use super::rest::{Rest, at_rest};
use super::tally::{Outcome, Row, Tally};
use crate::report::Table;

/// What is run.
#[derive(Clone, Debug)]
pub struct Chaos {
    pub layout: Layout,
    pub script: Script,
    pub rhythm: Rhythm,
    /// All of it, the calm at both ends included.
    pub how_long: Duration,
}

/// The calm before the first kill, in which caches fill, and after the last, in which they fill again: a share of the
/// whole, and no longer than this.
const CALM_SHARE: f64 = 0.25;
const LONGEST_CALM: Duration = Duration::from_secs(45);
/// Shares are compared over this long.
const COMPARED: Duration = Duration::from_secs(30);
/// As large a part of the share of before has to be cached again.
const RECOVERED: f64 = 0.9;
/// Connections the balancer has room for, for each conversation.
const CONNECTIONS: usize = 4;

/// How routers that go on with answers count them.
const CONTINUED: &str = "dynamo_frontend_model_migration_total{";
const ONGOING: &str = "migration_type=\"ongoing_request\"";

/// Something that is promised.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    pub what: &'static str,
    pub met: bool,
    pub found: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub seed: u64,
    pub seconds: f64,
    pub concurrency: usize,
    pub requests: u64,
    pub kills: BTreeMap<&'static str, u64>,
    pub outcomes: Vec<Counted>,
    /// Answers that routers went on with elsewhere, as those count that live now: less than there were.
    pub continued: f64,
    pub cached_share_before: Option<f64>,
    pub cached_share_after: Option<f64>,
    pub rest: Rest,
    pub targets: Vec<Target>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Counted {
    #[serde(flatten)]
    pub row: Row,
    pub requests: u64,
}

impl Chaos {
    /// Runs it on a bench of nothing yet; `say` is told how it goes. What was started is the bench's to stop.
    pub async fn run(&self, bench: &mut Bench, mut say: impl FnMut(String)) -> anyhow::Result<Report> {
        let layout = &self.layout;
        let reference = Arc::new(Reference::start(layout.answer_tokens).await?);
        let routers: Vec<SocketAddr> = (0..layout.routers).map(|n| layout.router(n)).collect();
        let most = self.script.concurrency * CONNECTIONS;
        let balancer = Arc::new(Balancer::start(layout.balancer(), &routers, most).await?);
        bench.start_all().await?;
        say(format!(
            "{} routers, {} engines ({} behind bridges) and NATS are ready; {} conversations begin",
            layout.routers, layout.workers, layout.bridged, self.script.concurrency
        ));
        let tally = Arc::new(Tally::default());
        let conversations = Conversations::start(self.script.clone(), balancer, reference, tally.clone());
        let calm = self.how_long.mul_f64(CALM_SHARE).min(LONGEST_CALM);
        tokio::time::sleep(calm).await;
        bench.children.check()?;
        let before = tally.cached_share(calm.saturating_sub(COMPARED).max(calm / 3), calm);
        let killing = self.how_long.saturating_sub(calm * 2);
        Killer::new(self.rhythm, &tally).run(bench, killing, &mut say).await?;
        say("everybody is back; a calm in which caches fill again".to_owned());
        tokio::time::sleep(calm).await;
        let over = tally.elapsed();
        let after = tally.cached_share(over.saturating_sub(COMPARED.min(calm / 2)), over);
        let mut continued = 0.0;
        for router in 0..layout.routers {
            let text = bench.metrics(router).await?;
            let ongoing: Vec<&str> = text.lines().filter(|line| line.contains(ONGOING)).collect();
            continued += sum_of(&ongoing.join("\n"), CONTINUED).unwrap_or(0.0);
        }
        conversations.finish().await?;
        let rest = at_rest(bench).await?;
        Ok(self.report(&tally, (before, after), continued, rest))
    }

    fn report(
        &self,
        tally: &Tally,
        (before, after): (Option<f64>, Option<f64>),
        continued: f64,
        rest: Rest,
    ) -> Report {
        let failed = tally.count(Outcome::FailedBefore);
        let (unexplained, examples) = tally.unexplained();
        let recovered = before.zip(after).is_some_and(|(before, after)| after >= RECOVERED * before);
        let share =
            |share: Option<f64>| share.map_or_else(|| "unknown".to_owned(), |share| format!("{share:.3}"));
        let target = |what, met, found: String| Target { what, met, found };
        let targets = vec![
            target("nothing failed before its first byte", failed == 0, failed.to_string()),
            target(
                "retries and silent cuts are a dead router's own, told cuts a dead engine's",
                unexplained == 0,
                format!("{unexplained} others {}", examples.join("; ")),
            ),
            target("every text is the engine's", tally.wrong_texts() == 0, tally.wrong_texts().to_string()),
            target(
                "at rest nothing is left, everybody is ready, the index is right",
                rest.complaints.is_empty(),
                rest.complaints.join("; "),
            ),
            target(
                "caches are hit as before",
                recovered,
                format!("cached {} before, {} after", share(before), share(after)),
            ),
        ];
        let outcomes = tally.rows().into_iter().map(|(row, requests)| Counted { row, requests });
        Report {
            seed: self.rhythm.seed,
            seconds: tally.elapsed().as_secs_f64(),
            concurrency: self.script.concurrency,
            requests: tally.all(),
            kills: tally.kills(),
            outcomes: outcomes.collect(),
            continued,
            cached_share_before: before,
            cached_share_after: after,
            rest,
            targets,
        }
    }
}

impl Report {
    pub fn is_fine(&self) -> bool {
        self.targets.iter().all(|target| target.met)
    }

    /// For people.
    pub fn text(&self) -> String {
        let kills: Vec<String> = self.kills.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        let title = format!(
            "{} requests of {} conversations in {:.0} s, seed {}; killed: {}; continued by routers: {}",
            self.requests,
            self.concurrency,
            self.seconds,
            self.seed,
            if kills.is_empty() { "nobody".to_owned() } else { kills.join(", ") },
            self.continued
        );
        let mut outcomes = Table::new(&title, &["requests", "outcome", "away meanwhile", "why"]);
        for counted in &self.outcomes {
            let Row { outcome, away, why } = &counted.row;
            outcomes.rows.push(vec![
                counted.requests.to_string(),
                outcome.to_string(),
                away.clone(),
                why.clone(),
            ]);
        }
        let mut rest = Table::new(
            "At rest",
            &["router", "worker", "state", "breaker", "in hand", "blocks known", "blocks held"],
        );
        for view in &self.rest.views {
            rest.rows.push(vec![
                view.router.to_string(),
                view.worker.to_string(),
                view.state.clone(),
                view.breaker.clone(),
                view.requests.to_string(),
                view.held_blocks.to_string(),
                view.really_holds.to_string(),
            ]);
        }
        let mut text = outcomes.terminal() + &rest.terminal();
        for print in &self.rest.footprints {
            let mib = print.resident_bytes / f64::from(1 << 20);
            text +=
                &format!("router {}: {mib:.0} MiB resident, {} files open\n", print.router, print.open_fds);
        }
        text.push('\n');
        for target in &self.targets {
            let met = if target.met { "met   " } else { "MISSED" };
            text += &format!("{met}  {}: {}\n", target.what, target.found);
        }
        text
    }
}
