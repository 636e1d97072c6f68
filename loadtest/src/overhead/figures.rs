//! What rounds say: medians, and ratios of those that were measured in one round.

use super::client::Sent;
use crate::report::Table;
use crate::statistics::{Interval, percentile};

/// One subject in one round.
#[derive(Clone, Debug)]
pub struct Round {
    pub cpu_s: Option<f64>,
    pub resident_mb: Option<f64>,
    pub sent: Sent,
    /// Blocks engines held of what they were asked, where the subject asked these engines.
    pub held: usize,
    pub asked: usize,
    /// Chunks of an answer.
    pub chunks: usize,
}

/// Of a thousand requests, so many may fail; a round in which more do says nothing.
const FAILED_PER_MILLE: usize = 1;
/// Processor time is counted in steps of 10 ms, so less than this says little.
const LEAST_CPU_S: f64 = 0.2;

impl Round {
    /// Whether its costs cannot be compared with another's.
    fn is_void(&self) -> bool {
        let Sent { answered, failed, .. } = &self.sent;
        1000 * failed > FAILED_PER_MILLE * (answered + failed)
            || self.cpu_s.is_some_and(|cpu| cpu < LEAST_CPU_S)
    }
}

/// A number to compare by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    CpuPerRequest,
    CpuPerChunk,
}

impl Figure {
    pub fn name(self) -> &'static str {
        match self {
            Self::CpuPerRequest => "CPU ms/request",
            Self::CpuPerChunk => "CPU us/chunk",
        }
    }

    pub fn of(self, round: &Round) -> Option<f64> {
        let (cpu, per) = match self {
            Self::CpuPerRequest => (round.cpu_s? * 1e3, round.sent.answered),
            // As many as were asked for, whatever else a router sends.
            Self::CpuPerChunk => (round.cpu_s? * 1e6, round.sent.answered * round.chunks),
        };
        (per > 0 && !round.is_void()).then(|| cpu / per as f64)
    }
}

/// Ratios this near to 1 are called equal.
const EQUAL: f64 = 0.2;

fn median(mut values: Vec<f64>) -> Option<f64> {
    (!values.is_empty()).then(|| percentile(&mut values, 0.5))
}

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

/// A row for each subject: its rounds' medians, and how it compares with the first one's.
pub fn tables(title: &str, subjects: &[(String, Vec<Round>)]) -> Vec<Table> {
    let mut costs = Table::new(
        title,
        &[
            "front end",
            "CPU ms/request",
            "CPU us/chunk",
            "req/s a core",
            "req/s seen",
            "TTFT p50",
            "p99",
            "max ms",
            "E2E p50",
            "p99",
            "max ms",
            "over 5 ms",
            "failed",
            "overlap",
            "RSS MB",
        ],
    );
    for (name, rounds) in subjects {
        let of = |figure: &dyn Fn(&Round) -> Option<f64>| median(rounds.iter().filter_map(figure).collect());
        let times = |pick: fn(&Sent) -> &Vec<f64>| -> Vec<f64> {
            rounds.iter().flat_map(|round| pick(&round.sent).iter().copied()).collect()
        };
        let (mut first, mut whole) = (times(|sent| &sent.first_ms), times(|sent| &sent.whole_ms));
        let per_request = of(&|round| Figure::CpuPerRequest.of(round));
        let (held, asked, said) = rounds.iter().fold((0, 0, 0), |(held, asked, said), round| {
            (held + round.held, asked + round.asked, said + round.sent.said_held)
        });
        let share = |part: usize, of: usize| 100.0 * part as f64 / of.max(1) as f64;
        let overlap = match (asked, said) {
            (0, _) => "-".to_owned(),
            (_, 0) => format!("{:.1} %", share(held, asked)),
            _ => format!("{:.1} %, known {:.1} %", share(held, asked), share(said, asked)),
        };
        let failed: usize = rounds.iter().map(|round| round.sent.failed).sum();
        let late = whole.iter().filter(|ms| **ms > 5.0).count();
        costs.rows.push(vec![
            name.clone(),
            shown(per_request, 3),
            shown(of(&|round| Figure::CpuPerChunk.of(round)), 1),
            shown(per_request.map(|ms| 1e3 / ms), 0),
            shown(of(&|round| Some(round.sent.answered as f64 / round.sent.seconds)), 0),
            shown(Some(percentile(&mut first, 0.5)), 2),
            shown(Some(percentile(&mut first, 0.99)), 2),
            shown(Some(percentile(&mut first, 1.0)), 1),
            shown(Some(percentile(&mut whole, 0.5)), 2),
            shown(Some(percentile(&mut whole, 0.99)), 2),
            shown(Some(percentile(&mut whole, 1.0)), 1),
            late.to_string(),
            failed.to_string(),
            overlap,
            shown(of(&|round| round.resident_mb), 0),
        ]);
    }
    let mut all = vec![costs];
    all.extend(ratios(title, subjects));
    all
}

/// The first subject's cost over each other's, round by round.
fn ratios(title: &str, subjects: &[(String, Vec<Round>)]) -> Option<Table> {
    let ((first, own), others) = subjects.split_first()?;
    let mut table = Table::new(
        &format!("{title}: {first} over"),
        &["front end", "of", "ratio", "95 % interval", "rounds", "says"],
    );
    for (name, rounds) in others {
        for figure in [Figure::CpuPerRequest, Figure::CpuPerChunk] {
            let pairs = own.iter().zip(rounds);
            let ratios: Vec<f64> =
                pairs.filter_map(|(own, other)| Some(figure.of(own)? / figure.of(other)?)).collect();
            let Some(middle) = median(ratios.clone()) else { continue };
            // Of logarithms, so that a ratio and its inverse say the same.
            let interval = Interval::of(&ratios.iter().map(|ratio| ratio.ln()).collect::<Vec<_>>());
            let (low, high) = interval.map_or((f64::NAN, f64::NAN), |of| (of.low.exp(), of.high.exp()));
            table.rows.push(vec![
                name.clone(),
                figure.name().to_owned(),
                format!("{middle:.3}"),
                format!("{low:.3} to {high:.3}"),
                ratios.len().to_string(),
                if (middle - 1.0).abs() <= EQUAL {
                    "equal"
                } else if middle < 1.0 {
                    "less"
                } else {
                    "more"
                }
                .to_owned(),
            ]);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(cpu_s: f64, answered: usize) -> Round {
        let sent = Sent { answered, seconds: 1.0, whole_ms: vec![1.0, 9.0], ..Sent::default() };
        Round { cpu_s: Some(cpu_s), resident_mb: Some(50.0), sent, held: 9, asked: 10, chunks: 10 }
    }

    #[test]
    fn rounds_are_paired() {
        let own = vec![round(0.5, 500), round(1.0, 500), round(0.5, 500), round(0.01, 500)];
        let other = vec![round(2.0, 500), round(4.0, 500), round(2.0, 500), round(2.0, 500)];
        let tables = tables("A", &[("ours".to_owned(), own), ("theirs".to_owned(), other)]);
        assert_eq!(tables[0].rows[0][1..3], ["1.000".to_owned(), "100.0".to_owned()]);
        assert_eq!(tables[0].rows[0][11], "4");
        assert_eq!(tables[1].rows[0][2..], ["0.250", "0.250 to 0.250", "3", "less"].map(str::to_owned));
        assert_eq!(super::tables("A", &[("alone".to_owned(), vec![round(0.1, 0)])]).len(), 1);
    }
}
