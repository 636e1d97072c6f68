//! What became of requests, and what was away while they ran.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

use super::bench::Part;

/// What became of a request, its client's own retries included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Answered whole at the first try.
    Whole,
    /// Answered whole after its client had to try again.
    WholeAfterRetry,
    /// Not a byte of an answer, and no tries left.
    FailedBefore,
    /// Cut in the middle, with an error event.
    CutTold,
    /// Cut in the middle, without a word.
    CutSilently,
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::Whole => "whole at the first try",
            Self::WholeAfterRetry => "whole after a client's retry",
            Self::FailedBefore => "FAILED before the first byte",
            Self::CutTold => "cut, told by an error event",
            Self::CutSilently => "cut without a word",
        })
    }
}

/// One time that a process was away.
#[derive(Clone, Copy, Debug)]
struct Absence {
    part: Part,
    /// Just before it was killed.
    from: Instant,
    /// When it was back and ready; none while it is not.
    to: Option<Instant>,
}

/// A try that got nowhere, or the last one.
#[derive(Clone, Copy, Debug)]
pub struct Tried {
    pub began: Instant,
    pub over: Instant,
    /// The router it went to, as far as the balancer knows.
    pub router: Option<usize>,
}

/// A request that is over.
#[derive(Clone, Debug)]
pub struct Record {
    pub outcome: Outcome,
    /// In a word, where it is not whole.
    pub why: String,
    pub tries: Vec<Tried>,
    /// What came is not what should have come.
    pub wrong_text: bool,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Row {
    pub outcome: Outcome,
    /// What was away at that time.
    pub away: String,
    pub why: String,
}

#[derive(Debug, Default)]
struct Inner {
    rows: BTreeMap<Row, u64>,
    absences: Vec<Absence>,
    /// By second since the start: cached and all tokens of prompts.
    tokens: Vec<(u64, u64)>,
    wrong_texts: u64,
    unexplained: u64,
    examples: Vec<String>,
    /// Requests cut, by router: silently or before their first byte.
    lost_with: BTreeMap<usize, u64>,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Tally {
    began: Instant,
    inner: Mutex<Inner>,
}

/// What is noticed of a death may come this long after it, and before the next process is quite itself.
const AFTERMATH: Duration = Duration::from_secs(2);
/// The router's word for an answer that its worker did not finish.
const BROKE_OFF: &str = "answer_broke_off";
const MOST_EXAMPLES: usize = 20;
const MOST_ROWS: usize = 1000;
/// Seconds whose tokens are kept apart: a day.
const MOST_SECONDS: usize = 86_400;

impl Default for Tally {
    fn default() -> Self {
        Self { began: Instant::now(), inner: Mutex::default() }
    }
}

impl Tally {
    /// To be said before it happens.
    pub fn killed(&self, part: Part) {
        self.inner.lock().absences.push(Absence { part, from: Instant::now(), to: None });
    }

    pub fn back(&self, part: Part) {
        let mut inner = self.inner.lock();
        let last = inner.absences.iter_mut().rev().find(|absence| absence.part == part);
        if let Some(absence) = last {
            absence.to = Some(Instant::now());
        }
    }

    /// Times each kind was killed.
    pub fn kills(&self) -> BTreeMap<&'static str, u64> {
        let inner = self.inner.lock();
        inner.absences.iter().fold(BTreeMap::new(), |mut kills, absence| {
            *kills.entry(absence.part.kind()).or_default() += 1;
            kills
        })
    }

    pub fn add(&self, record: &Record) {
        let mut inner = self.inner.lock();
        let (Some(first), Some(last)) = (record.tries.first(), record.tries.last()) else { return };
        let away = inner.away(first.began, last.over);
        let mut kinds: Vec<&str> = away.iter().map(|part| part.kind()).collect();
        kinds.dedup();
        let away = if kinds.is_empty() { "nothing".to_owned() } else { kinds.join("+") };
        if !inner.is_explained(record) {
            inner.unexplained += 1;
            let example = format!("{}: {}; away: {away}", record.outcome, record.why);
            if inner.examples.len() < MOST_EXAMPLES {
                inner.examples.push(example);
            }
        }
        let lost = match record.outcome {
            Outcome::Whole | Outcome::CutTold => 0,
            Outcome::WholeAfterRetry => record.tries.len() - 1,
            Outcome::FailedBefore | Outcome::CutSilently => record.tries.len(),
        };
        for router in record.tries[..lost].iter().filter_map(|tried| tried.router) {
            *inner.lost_with.entry(router).or_default() += 1;
        }
        inner.wrong_texts += u64::from(record.wrong_text);
        let second = last.over.duration_since(self.began).as_secs() as usize;
        if second < MOST_SECONDS {
            if inner.tokens.len() <= second {
                inner.tokens.resize(second + 1, (0, 0));
            }
            let (cached, all) = &mut inner.tokens[second];
            (*cached, *all) = (*cached + record.cached_tokens, *all + record.prompt_tokens);
        }
        // Those that went well say nothing by what was away.
        let row = Row { outcome: record.outcome, away, why: record.why.clone() };
        let row = if record.outcome == Outcome::Whole { Row { away: String::new(), ..row } } else { row };
        if inner.rows.len() < MOST_ROWS || inner.rows.contains_key(&row) {
            *inner.rows.entry(row).or_default() += 1;
        }
    }

    pub fn rows(&self) -> Vec<(Row, u64)> {
        self.inner.lock().rows.iter().map(|(row, count)| (row.clone(), *count)).collect()
    }

    pub fn count(&self, outcome: Outcome) -> u64 {
        let inner = self.inner.lock();
        inner.rows.iter().filter(|(row, _)| row.outcome == outcome).map(|(_, count)| count).sum()
    }

    pub fn all(&self) -> u64 {
        self.inner.lock().rows.values().sum()
    }

    /// Answers whose text was not the engine's.
    pub fn wrong_texts(&self) -> u64 {
        self.inner.lock().wrong_texts
    }

    /// Requests that fared badly although nobody died who could be to blame, and what some of them were.
    pub fn unexplained(&self) -> (u64, Vec<String>) {
        let inner = self.inner.lock();
        (inner.unexplained, inner.examples.clone())
    }

    /// Tries that a router took along when it died.
    pub fn lost_with(&self, router: usize) -> u64 {
        self.inner.lock().lost_with.get(&router).copied().unwrap_or(0)
    }

    /// Share of prompts that was cached, over the answers that ended between these seconds since the start.
    pub fn cached_share(&self, from: Duration, to: Duration) -> Option<f64> {
        let inner = self.inner.lock();
        let (from, to) = (from.as_secs() as usize, (to.as_secs() as usize).min(inner.tokens.len()));
        let seconds = inner.tokens.get(from.min(to)..to)?;
        let (cached, all) = seconds.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        (all > 0).then(|| cached as f64 / all as f64)
    }

    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

impl Inner {
    /// Who was away at some time between the two.
    fn away(&self, from: Instant, to: Instant) -> Vec<Part> {
        let within =
            |absence: &&Absence| absence.from <= to && absence.to.is_none_or(|back| back + AFTERMATH >= from);
        let mut away: Vec<Part> = self.absences.iter().filter(within).map(|absence| absence.part).collect();
        away.sort();
        away.dedup();
        away
    }

    /// Whether somebody's death is to blame who may be: a router for what it had in hand, a worker for what it was in the
    /// middle of. Nothing may fail before its first byte.
    fn is_explained(&self, record: &Record) -> bool {
        let router_died = |tried: &Tried| {
            self.absences.iter().any(|absence| {
                let same = match (absence.part, tried.router) {
                    (Part::Router(n), Some(router)) => n == router,
                    (Part::Router(_), None) => true,
                    _ => false,
                };
                same && absence.from <= tried.over && absence.from + AFTERMATH >= tried.began
            })
        };
        let whole = record.outcome != Outcome::FailedBefore && !record.wrong_text;
        match (record.outcome, record.tries.split_last()) {
            (Outcome::Whole, _) => whole,
            (Outcome::WholeAfterRetry, Some((_, failed))) => whole && failed.iter().all(router_died),
            (Outcome::CutSilently, Some((last, failed))) => {
                whole && router_died(last) && failed.iter().all(router_died)
            }
            (Outcome::CutTold, Some((last, failed))) => {
                // In the middle of it, not at some other time.
                let died = self.absences.iter().any(|absence| {
                    let meanwhile = last.began <= absence.from && absence.from <= last.over;
                    matches!(absence.part, Part::Worker(_)) && meanwhile
                });
                let told = record.why.starts_with(BROKE_OFF);
                whole && died && told && failed.iter().all(router_died)
            }
            _ => false,
        }
    }
}
