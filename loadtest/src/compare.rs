//! Two runs beside each other: what differs, by how much, and whether that can be told from chance.
//!
//! Figures are compared by their ratio (its logarithm, so that it does not matter which of the two comes first), shares and
//! counts of failures by their difference. Repeats that began with one seed are compared in pairs; what cannot be paired is
//! compared by its means (Welch). With too few runs there is no interval, and it says so.

use crate::report::Table;
use crate::results::{Better, METRICS, Metric, Set};
use crate::statistics::{Interval, Verdict, mean_of};

/// A repeat, and its value.
type Repeat = (u64, f64);

/// One of the two.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    pub set: &'a Set,
    pub mode: &'a str,
}

/// One figure, at one level or over all of them.
#[derive(Clone, Debug)]
pub struct Difference {
    pub metric: &'static Metric,
    /// None: all levels together.
    pub level: Option<usize>,
    pub one: f64,
    pub other: f64,
    /// By how much the other is above the one.
    pub change: f64,
    /// Of that, where there are enough runs.
    pub interval: Option<Interval>,
    pub paired: bool,
    /// In percent, or in points.
    pub scale: Scale,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    Percent,
    Points,
}

impl Scale {
    /// Ratios of shares mean little, and those of nothing mean nothing.
    fn of(metric: &Metric, values: &[&[Repeat]]) -> Self {
        let positive = values.iter().all(|of| of.iter().all(|(_, value)| *value > 0.0));
        if metric.unit == "%" || !positive { Self::Points } else { Self::Percent }
    }

    fn inner(self, value: f64) -> f64 {
        if self == Self::Percent { value.ln() } else { value }
    }

    fn outer(self, difference: f64) -> f64 {
        if self == Self::Percent { 100.0 * difference.exp_m1() } else { difference }
    }

    fn unit(self) -> &'static str {
        if self == Self::Percent { "%" } else { "points" }
    }
}

impl Difference {
    /// In words, from the other's point of view.
    pub fn verdict(&self) -> &'static str {
        let Some(interval) = &self.interval else { return "too few runs for an interval" };
        match (interval.verdict(), self.metric.better) {
            (Verdict::NotDistinguishable, _) => "not distinguishable",
            (Verdict::Lower, Better::Lower) | (Verdict::Higher, Better::Higher) => "better",
            (Verdict::Lower | Verdict::Higher, Better::Neither) => "different",
            (Verdict::Lower | Verdict::Higher, _) => "worse",
        }
    }

    /// Of values by repeat, on both sides.
    fn new(
        metric: &'static Metric,
        level: Option<usize>,
        (ours, theirs): (&[Repeat], &[Repeat]),
        scale: Scale,
        pairs: bool,
    ) -> Self {
        let inner = |of: &[Repeat]| of.iter().map(|(_, value)| scale.inner(*value)).collect::<Vec<f64>>();
        let of_pair = |(repeat, value): &Repeat| {
            let (_, base) = ours.iter().find(|(of, _)| of == repeat)?;
            Some(scale.inner(*value) - scale.inner(*base))
        };
        let paired: Vec<f64> = if pairs { theirs.iter().filter_map(of_pair).collect() } else { Vec::new() };
        let is_paired = paired.len() >= 2;
        let interval = if is_paired {
            Interval::of(&paired)
        } else {
            Interval::of_difference(&inner(ours), &inner(theirs))
        };
        let change = interval.map_or_else(|| mean_of(&inner(theirs)) - mean_of(&inner(ours)), |of| of.mean);
        let outer = |of: Interval| Interval {
            mean: scale.outer(of.mean),
            low: scale.outer(of.low),
            high: scale.outer(of.high),
            count: of.count,
        };
        let plain = |of: &[Repeat]| mean_of(&of.iter().map(|(_, value)| *value).collect::<Vec<_>>());
        Self {
            metric,
            level,
            one: plain(ours),
            other: plain(theirs),
            change: scale.outer(change),
            interval: interval.map(outer),
            paired: is_paired,
            scale,
        }
    }
}

/// Of every figure asked for that both have. `pairs` says whether equal repeats began with equal seeds.
pub fn compare(one: Side<'_>, other: Side<'_>, metrics: &[&'static Metric], pairs: bool) -> Vec<Difference> {
    let levels: Vec<usize> =
        one.set.levels().into_iter().filter(|level| other.set.levels().contains(level)).collect();
    let mut differences = Vec::new();
    for metric in metrics {
        let both: Vec<(usize, [Vec<Repeat>; 2])> = levels
            .iter()
            .map(|level| (*level, [one, other].map(|side| values(side, metric, *level))))
            .filter(|(_, both)| both.iter().all(|values| !values.is_empty()))
            .collect();
        let all: Vec<&[Repeat]> = both.iter().flat_map(|(_, both)| both.iter().map(Vec::as_slice)).collect();
        let scale = Scale::of(metric, &all);
        for (level, [ours, theirs]) in &both {
            differences.push(Difference::new(metric, Some(*level), (ours, theirs), scale, pairs));
        }
        if both.len() > 1 {
            let [ours, theirs] =
                [0, 1].map(|side| over_levels(both.iter().map(|(_, both)| &both[side]), scale));
            if !ours.is_empty() && !theirs.is_empty() {
                let all = Difference::new(metric, None, (&ours, &theirs), scale, pairs);
                differences.push(all);
            }
        }
    }
    differences
}

fn values(side: Side<'_>, metric: &Metric, level: usize) -> Vec<Repeat> {
    side.set
        .at(side.mode, level)
        .filter_map(|(cell, figures)| Some((cell.repeat, (metric.of)(figures)?)))
        .collect()
}

/// Each repeat's mean over the levels; a repeat that has not seen all of them would tilt it, and is left out.
fn over_levels<'a>(levels: impl Iterator<Item = &'a Vec<Repeat>>, scale: Scale) -> Vec<Repeat> {
    let levels: Vec<&Vec<Repeat>> = levels.collect();
    let of_repeat = |repeat: u64| {
        let of = |level: &&Vec<Repeat>| level.iter().find(|(of, _)| *of == repeat).map(|(_, value)| *value);
        let inner: Option<Vec<f64>> =
            levels.iter().map(|level| of(level).map(|value| scale.inner(value))).collect();
        let mean = mean_of(&inner?);
        Some((repeat, if scale == Scale::Percent { mean.exp() } else { mean }))
    };
    let first = levels.first().copied().cloned().unwrap_or_default();
    first.into_iter().filter_map(|(repeat, _)| of_repeat(repeat)).collect()
}

/// As people read it.
pub fn table(title: &str, names: (&str, &str), differences: &[Difference]) -> Table {
    let head = ["figure", "level", names.0, names.1, "change", "95 % interval", "pairs", "verdict"];
    let mut table = Table::new(title, &head);
    for of in differences {
        let digits = of.metric.digits;
        let unit = of.scale.unit();
        let interval = of.interval.map(|of| format!("{:+.1} to {:+.1} {unit}", of.low, of.high));
        let pairs = match of.interval {
            Some(interval) if of.paired => interval.count.to_string(),
            Some(_) => "unpaired".to_owned(),
            None => "–".to_owned(),
        };
        table.rows.push(vec![
            format!("{} {}", of.metric.title, of.metric.unit).trim_end().to_owned(),
            of.level.map_or_else(|| "all".to_owned(), |level| level.to_string()),
            format!("{:.digits$}", of.one),
            format!("{:.digits$}", of.other),
            format!("{:+.1} {unit}", of.change),
            interval.unwrap_or_else(|| "–".to_owned()),
            pairs,
            of.verdict().to_owned(),
        ]);
    }
    table
}

/// The figures people mean, when they do not say.
pub const USUAL: [&str; 7] =
    ["ttft_p50_ms", "ttft_p95_ms", "itl_p50_ms", "e2e_p50_s", "tops", "rps", "hit_pct"];

pub fn metrics(keys: &[String]) -> anyhow::Result<Vec<&'static Metric>> {
    let known = || METRICS.iter().map(|metric| metric.key).collect::<Vec<_>>().join(", ");
    let find = |key: &String| {
        let found = METRICS.iter().find(|metric| metric.key == key);
        found.ok_or_else(|| anyhow::anyhow!("figure is {key}, expected some of {}", known()))
    };
    keys.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{cell, sweep};

    fn usual() -> Vec<&'static Metric> {
        metrics(&["ttft_p95_ms".to_owned(), "tops".to_owned()]).unwrap()
    }

    #[test]
    fn what_differs_is_told_with_its_interval() {
        let results = sweep();
        let set = &results.sets[0];
        let side = |mode| Side { set, mode };
        let found = compare(side("round_robin"), side("kvlane"), &usual(), true);
        assert_eq!(found.len(), 8, "two figures, three levels and all of them");
        assert!(found.iter().all(|of| of.verdict() == "better" && of.paired), "{found:#?}");
        let all = found.iter().find(|of| of.level.is_none()).unwrap();
        assert!((-36.0..-30.0).contains(&all.change) && all.interval.unwrap().count == 3);
        let swapped = compare(side("kvlane"), side("round_robin"), &usual(), true);
        assert!(swapped.iter().all(|of| of.verdict() == "worse"));
        let same = compare(side("kvlane"), side("kvlane"), &usual(), true);
        assert!(same.iter().all(|of| of.verdict() == "not distinguishable" && of.change == 0.0));
        // Which of the two comes first makes no difference but the sign.
        for (there, back) in found.iter().zip(&swapped) {
            let product = (1.0 + there.change / 100.0) * (1.0 + back.change / 100.0);
            assert!((product - 1.0).abs() < 1e-9, "{there:?}");
        }
        assert!(table("t", ("a", "b"), &found).terminal().contains("better"));
    }

    #[test]
    fn chance_is_not_a_difference_and_one_run_is_no_proof() {
        let mut results = sweep();
        let set = &mut results.sets[0];
        set.cells.clear();
        for (repeat, (base, value)) in
            [(500.0, 530.0), (520.0, 490.0), (510.0, 515.0)].into_iter().enumerate()
        {
            set.cells.push(cell("a", 60, repeat as u64, base, 2000.0));
            set.cells.push(cell("b", 60, repeat as u64, value, 2000.0));
            // Other seeds: they cannot be paired.
            set.cells.push(cell("c", 60, 100 + repeat as u64, value, 2000.0));
        }
        set.cells.push(cell("d", 60, 0, 100.0, 2000.0));
        let side = |mode| Side { set, mode };
        let verdicts = |one, other| -> Vec<(&str, bool)> {
            compare(side(one), side(other), &usual(), true)
                .iter()
                .map(|of| (of.verdict(), of.paired))
                .collect()
        };
        assert_eq!(verdicts("a", "b"), [("not distinguishable", true); 2]);
        assert_eq!(verdicts("a", "c"), [("not distinguishable", false); 2]);
        assert_eq!(verdicts("d", "a")[0], ("too few runs for an interval", false));
        assert!(verdicts("a", "nobody").is_empty());
        // Nothing failed on one side: points, and no ratio to nothing.
        let failures = |mode: &str, pct: f64| {
            let with = |n: u64| {
                let mut cell = cell(mode, 60, n, 500.0, 2000.0);
                cell.figures.iter_mut().for_each(|of| of.error_pct = Some(pct + n as f64 / 10.0 * pct));
                cell
            };
            (1..=3).map(with).collect::<Vec<_>>()
        };
        let cells = [failures("none", 0.0), failures("some", 5.0)].concat();
        let set = Set { cells, ..set.clone() };
        let side = |mode| Side { set: &set, mode };
        let found = compare(side("none"), side("some"), &metrics(&["error_pct".to_owned()]).unwrap(), true);
        assert!((found[0].change - 6.0).abs() < 1e-9 && found[0].verdict() == "worse", "{found:?}");
        assert!(
            metrics(&["speed".to_owned()]).unwrap_err().to_string().contains("expected some of ttft_p50_ms")
        );
    }
}
