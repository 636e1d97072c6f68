//! The tables of a set: what the reference deployment's tables have, and what it takes to judge them.

use super::reference::Reference;
use super::table::Table;
use crate::measure::Objective;
use crate::results::{Better, LevelFigures, METRICS, Metric, Set, TurnFigures};
use crate::statistics::{Interval, holds_to, knee, mean_of};

/// How a mode does over all levels.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    pub mode: String,
    /// The last level up to which the objective is kept.
    pub holds_to: Option<usize>,
    /// Whether the first level was.
    pub measured: bool,
    /// Where more load stops bringing more tokens.
    pub knee: Option<usize>,
    /// The level it was too much at, and what showed it.
    pub saturated: Option<(usize, String)>,
}

/// Percentiles within the objective, and hardly anything failed.
fn keeps(figures: &LevelFigures, objective: &Objective) -> bool {
    let within = |figure: Option<f64>, most_ms: f64| figure.is_some_and(|ms| ms <= most_ms);
    within(figures.ttft_p95_ms, objective.ttft_s * 1e3)
        && figures.itl_p95_ms.is_none_or(|ms| ms <= objective.tpot_s * 1e3)
        && figures.error_pct.is_none_or(|pct| pct <= 1.0)
}

pub fn standings(set: &Set, objective: &Objective) -> Vec<Standing> {
    let of = |mode: &str| {
        let levels = set.levels();
        let means: Vec<(usize, Option<LevelFigures>)> =
            levels.iter().map(|level| (*level, set.mean(mode, *level).map(|(mean, _)| mean))).collect();
        let curve: Vec<(f64, f64)> = means
            .iter()
            .filter_map(|(level, figures)| Some((*level as f64, figures.as_ref()?.tops?)))
            .collect();
        let too_much = |cell: &&crate::results::Cell| {
            cell.mode == mode && cell.saturated.is_some() && cell.invalid.is_none()
        };
        let saturated = set
            .cells
            .iter()
            .filter(too_much)
            .filter_map(|cell| Some((cell.level, cell.saturated.clone()?)))
            .min_by_key(|(level, _)| *level);
        // A level that nobody measured, or that was too much once, is not one that holds.
        let fine = |(level, figures): &(usize, Option<LevelFigures>)| {
            let once = set.cells.iter().filter(too_much).any(|cell| cell.level == *level);
            (*level, !once && figures.as_ref().is_some_and(|figures| keeps(figures, objective)))
        };
        Standing {
            mode: mode.to_owned(),
            holds_to: holds_to(means.iter().map(fine)),
            measured: means.first().is_some_and(|(_, figures)| figures.is_some()),
            knee: knee(&curve).map(|level| level as usize),
            saturated,
        }
    };
    set.modes().into_iter().map(of).collect()
}

impl Standing {
    /// How far the promise is kept, in words.
    pub fn words(&self, set: &Set) -> String {
        match (self.holds_to, set.levels().first()) {
            (Some(level), _) => format!("objective holds to {}", set.level_in_words(level)),
            (None, Some(first)) if self.measured => {
                format!("objective missed already at {}", set.level_in_words(*first))
            }
            _ => "not measured from its first level on".to_owned(),
        }
    }
}

pub fn tables(set: &Set, objective: &Objective) -> Vec<Table> {
    let reference = Reference::of(set);
    let beside = if reference.is_some() { ", simulated / recorded" } else { "" };
    let long = |title: &str, columns: &[&str], gains: &[&str]| {
        by_level(set, reference.as_ref(), &format!("{title}{beside}"), columns, gains)
    };
    let mut tables = vec![
        long(
            "Time to first token",
            &["ttft_p50_ms", "ttft_p95_ms", "hit_pct"],
            &["ttft_p50_ms", "ttft_p95_ms"],
        ),
        long("Throughput", &["tops", "rps", "goodput_pct", "error_pct"], &["tops"]),
        long("Inter-token latency, request means", &["itl_p50_ms", "itl_p95_ms"], &["itl_p50_ms"]),
        long("End to end", &["e2e_p50_s", "e2e_p95_s"], &["e2e_p50_s"]),
    ];
    tables.extend(behind(set));
    tables.extend(by_turn(set));
    tables.push(summary(set, objective));
    tables.extend(not_counted(set));
    tables
}

fn metric(key: &str) -> &'static Metric {
    METRICS.iter().find(|metric| metric.key == key).expect("a figure that is declared")
}

/// "12.3 ±0.4": the mean of the repeats that count.
fn shown_mean(set: &Set, mode: &str, level: usize, metric: &Metric) -> Option<String> {
    let values: Vec<f64> = set.at(mode, level).filter_map(|(_, figures)| (metric.of)(figures)).collect();
    let mean = mean_of(&values);
    let half = Interval::of(&values).map(|interval| interval.high - interval.mean).filter(|half| *half > 0.0);
    let digits = metric.digits;
    match half {
        _ if values.is_empty() => None,
        Some(half) => Some(format!("{mean:.digits$} ±{half:.digits$}")),
        None => Some(format!("{mean:.digits$}")),
    }
}

/// Percent by which a mode is better than the baseline.
fn gain(set: &Set, mode: &str, level: usize, metric: &Metric) -> Option<f64> {
    let baseline = set.baseline().filter(|baseline| *baseline != mode)?;
    let [ours, base] = [mode, baseline].map(|mode| (metric.of)(&set.mean(mode, level)?.0));
    let (ours, base) = (ours?, base?);
    let change = 100.0 * (ours - base) / base;
    let better = match metric.better {
        Better::Lower => -change,
        Better::Higher => change,
        Better::Neither => return None,
    };
    better.is_finite().then_some(better)
}

const DASH: &str = "–";

fn dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| DASH.to_owned())
}

/// A row for each level and mode. Columns nobody has a figure for are left out.
fn by_level(
    set: &Set,
    reference: Option<&Reference>,
    title: &str,
    columns: &[&str],
    gains: &[&str],
) -> Table {
    let (levels, modes) = (set.levels(), set.modes());
    let repeats = set.cells.iter().map(|cell| cell.repeat).collect::<std::collections::BTreeSet<_>>().len();
    let seen = |key: &&&str| {
        let known = |cell: &crate::results::Cell| {
            cell.figures
                .as_ref()
                .and_then(metric(key).of)
                .is_some_and(|value| *key != &"error_pct" || value > 0.0)
        };
        set.cells.iter().any(known)
    };
    let columns: Vec<&Metric> = columns.iter().filter(seen).map(|key| metric(key)).collect();
    let gains: Vec<&Metric> =
        gains.iter().filter(|_| modes.len() > 1).filter(seen).map(|key| metric(key)).collect();
    let mut head = vec!["level".to_owned(), "mode".to_owned()];
    head.extend(columns.iter().map(|metric| format!("{} {}", metric.title, metric.unit)));
    head.extend(gains.iter().map(|metric| format!("{} gain %", metric.title)));
    let mut table = Table { title: title.to_owned(), head, rows: Vec::new() };
    for level in levels {
        for mode in modes
            .iter()
            .filter(|mode| set.cells.iter().any(|cell| cell.level == level && cell.mode == **mode))
        {
            let counted = set.at(mode, level).count();
            let fewer = if counted < repeats { format!(" ({counted} of {repeats})") } else { String::new() };
            let mut row = vec![level.to_string(), format!("{mode}{fewer}")];
            for metric in &columns {
                let shown = dash(shown_mean(set, mode, level, metric));
                let recorded = reference.and_then(|reference| reference.value(mode, metric.key, level));
                row.push(match recorded {
                    Some(recorded) => format!("{shown} / {recorded}"),
                    None => shown,
                });
            }
            let shown =
                |metric: &&Metric| dash(gain(set, mode, level, metric).map(|gain| format!("{gain:+.1}")));
            row.extend(gains.iter().map(shown));
            table.rows.push(row);
        }
    }
    table
}

/// What explains the rest, where it was seen.
fn behind(set: &Set) -> Option<Table> {
    const COLUMNS: [&str; 7] = [
        "inflight_spread_p95",
        "inflight_spread_max",
        "inflight_skew",
        "queue_ms_mean",
        "queue_ms_worst",
        "acceptance_pct",
        "tokens_per_step",
    ];
    let title = "Behind it: requests over workers (spread, skew), waits for a slot, speculation";
    let table = by_level(set, None, title, &COLUMNS, &[]);
    (table.head.len() > 2).then_some(table)
}

/// At the level in the middle.
fn by_turn(set: &Set) -> Option<Table> {
    let levels = set.levels();
    let level = *levels.get(levels.len() / 2)?;
    let title = format!("By turn, at {level}");
    let head = [
        "turn",
        "mode",
        "prompt tokens",
        "answer tokens",
        "TTFT p50 ms",
        "TTFT p95 ms",
        "E2E p50 s",
        "cached %",
    ];
    let mut table = Table::new(&title, &head);
    let turns: std::collections::BTreeSet<usize> =
        set.cells.iter().flat_map(|cell| cell.by_turn.iter().map(|of| of.turn)).collect();
    for turn in turns {
        for mode in set.modes() {
            let of: Vec<&TurnFigures> = set
                .at(mode, level)
                .flat_map(|(cell, _)| cell.by_turn.iter().filter(|of| of.turn == turn))
                .collect();
            if of.is_empty() {
                continue;
            }
            let mean = TurnFigures::mean(&of);
            let number =
                |value: Option<f64>, digits: usize| dash(value.map(|value| format!("{value:.digits$}")));
            table.rows.push(vec![
                turn.to_string(),
                mode.to_owned(),
                number(mean.prompt_tokens, 0),
                number(mean.output_tokens, 0),
                number(mean.ttft_p50_ms, 0),
                number(mean.ttft_p95_ms, 0),
                number(mean.e2e_p50_s, 1),
                number(mean.hit_pct, 1),
            ]);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

fn summary(set: &Set, objective: &Objective) -> Table {
    let title = format!(
        "Summary (gains over {}; objective: TTFT p95 {:.0} ms, ITL p95 {:.0} ms)",
        set.baseline().unwrap_or_default(),
        objective.ttft_s * 1e3,
        objective.tpot_s * 1e3
    );
    let head = [
        "mode",
        "objective",
        "bends at",
        "TTFT p50 gain, mean",
        "TTFT p95 gain, mean",
        "TTFT p95 gain, best",
        "tokens/s gain, mean",
        "tokens/s gain, best",
        "cached %",
        "peak tokens/s",
        "too much at",
    ];
    let mut table = Table::new(&title, &head);
    for standing in standings(set, objective) {
        let mode = standing.mode.as_str();
        let levels = set.levels();
        let gains = |key: &str| -> Vec<(usize, f64)> {
            levels.iter().filter_map(|level| Some((*level, gain(set, mode, *level, metric(key))?))).collect()
        };
        let mean = |gains: &[(usize, f64)]| {
            let gains: Vec<f64> = gains.iter().map(|(_, gain)| *gain).collect();
            dash((!gains.is_empty()).then(|| format!("{:+.1} %", mean_of(&gains))))
        };
        let best = |gains: &[(usize, f64)]| {
            let best = gains.iter().max_by(|one, other| one.1.total_cmp(&other.1));
            dash(best.map(|(level, gain)| format!("{gain:+.1} % at {level}")))
        };
        let values = |key: &str| -> Vec<f64> {
            let of = |level: &usize| (metric(key).of)(&set.mean(mode, *level)?.0);
            levels.iter().filter_map(of).collect()
        };
        let (hits, tops) = (values("hit_pct"), values("tops"));
        let (least, most) =
            hits.iter().fold((f64::MAX, f64::MIN), |(least, most), hit| (least.min(*hit), most.max(*hit)));
        let cached = format!("{least:.1} to {most:.1}, mean {:.1}", mean_of(&hits));
        let (p50, p95, tokens) = (gains("ttft_p50_ms"), gains("ttft_p95_ms"), gains("tops"));
        table.rows.push(vec![
            mode.to_owned(),
            standing.words(set).trim_start_matches("objective ").to_owned(),
            dash(standing.knee.map(|level| level.to_string())),
            mean(&p50),
            mean(&p95),
            best(&p95),
            mean(&tokens),
            best(&tokens),
            dash((!hits.is_empty()).then_some(cached)),
            dash(tops.iter().copied().max_by(f64::total_cmp).map(|peak| format!("{peak:.1}"))),
            dash(standing.saturated.map(|(level, why)| format!("{level}: {why}"))),
        ]);
    }
    table
}

/// Cells that are worth nothing, and why.
fn not_counted(set: &Set) -> Option<Table> {
    let mut table = Table::new("Not counted", &["level", "mode", "repeat", "why"]);
    for cell in &set.cells {
        let Some(why) = &cell.invalid else { continue };
        table.rows.push(vec![
            cell.level.to_string(),
            cell.mode.clone(),
            cell.repeat.to_string(),
            why.clone(),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::sweep;

    #[test]
    fn gains_are_positive_where_the_mode_is_better() {
        let results = sweep();
        let set = &results.sets[0];
        let p95 = gain(set, "kvlane", 60, metric("ttft_p95_ms")).unwrap();
        assert!((p95 - 100.0 * (510.0 - 340.0) / 510.0).abs() < 1e-9, "{p95}");
        assert!((gain(set, "kvlane", 60, metric("tops")).unwrap() - 100.0 * 250.0 / 2310.0).abs() < 1e-9);
        assert_eq!(gain(set, "round_robin", 60, metric("tops")), None);
        assert_eq!(gain(set, "kvlane", 60, metric("requests")), None);
    }

    #[test]
    fn standings_say_how_far_the_objective_holds() {
        let mut results = sweep();
        let objective = results.objective;
        let set = &mut results.sets[0];
        set.cells[5].saturated = Some("TTFT grows".to_owned());
        let [rr, kv] = &standings(set, &objective)[..] else { panic!("two modes") };
        assert_eq!((rr.holds_to, kv.holds_to), (Some(60), Some(120)));
        assert_eq!(kv.saturated, Some((180, "TTFT grows".to_owned())));
        assert_eq!(kv.words(set), "objective holds to c = 120");
        set.cells.iter_mut().for_each(|cell| {
            cell.figures.iter_mut().for_each(|figures| figures.error_pct = Some(3.0));
        });
        assert_eq!(standings(set, &objective)[1].holds_to, None);
    }

    #[test]
    fn tables_name_what_does_not_count_and_leave_out_what_nobody_knows() {
        let mut results = sweep();
        results.sets[0].cells[0].invalid = Some("the generator was busy".to_owned());
        let tables = tables(&results.sets[0], &results.objective);
        let titles: Vec<&str> = tables.iter().map(|table| table.title.as_str()).collect();
        assert_eq!(titles.last(), Some(&"Not counted"));
        assert!(!titles.iter().any(|title| title.starts_with("Behind it")), "{titles:?}");
        assert!(tables.iter().all(|table| table.rows.iter().all(|row| row.len() == table.head.len())));
    }
}
