//! Figures as people read them: a table for a terminal, Markdown for a file.

use std::fmt::Write;

use serde::Serialize;

use super::{Row, Scenario, Settings};

/// A row with its scenario, for machines.
#[derive(Debug, Serialize)]
pub struct Named {
    pub scenario: &'static str,
    #[serde(flatten)]
    pub row: Row,
}

/// What a run was of, in a line.
fn title(scenario: &Scenario, settings: &Settings) -> String {
    let last = settings.first_seed + settings.seeds as u64 - 1;
    format!(
        "{} engines `{}`, seeds {} to {last}, simulated: {}",
        settings.workers, settings.engine.name, settings.first_seed, scenario.about
    )
}

pub fn table(scenario: &Scenario, settings: &Settings, rows: &[Row]) -> String {
    let mut out = format!("{}: {}\n", scenario.name, title(scenario, settings));
    out.push_str(
        "mode           level  ttft p50/p95 ms    itl p50/p95 ms  e2e p50/p95 s   tok/s   req/s  hit %  spread  queue ms\n",
    );
    for row in rows {
        let figures = &row.figures;
        let _ = writeln!(
            out,
            "{:<14} {:>5}  {:>7.0} / {:<7.0}  {:>6.1} / {:<6.1}  {:>5.1} / {:<5.1}  {:>7.1}  {:>5.2}  {:>5.1}  {:>6.1}  {:>8.1}",
            row.mode.name(),
            row.level,
            figures.ttft_p50_ms,
            figures.ttft_p95_ms,
            figures.itl_p50_ms,
            figures.itl_p95_ms,
            figures.e2e_p50_s,
            figures.e2e_p95_s,
            figures.tops,
            figures.rps,
            figures.hit_pct,
            figures.inflight_spread_p95,
            figures.queue_ms_mean,
        );
    }
    out
}

pub fn markdown(scenario: &Scenario, settings: &Settings, rows: &[Row]) -> String {
    let mut out = format!("\n## {}\n\n{}.\n\n", scenario.name, title(scenario, settings));
    out.push_str(
        "| level | mode | TTFT p50 ms | TTFT p95 ms | ITL p50 ms | E2E p50 s | tokens/s | hit % |\n",
    );
    out.push_str("|--:|---|--:|--:|--:|--:|--:|--:|\n");
    for level in &settings.levels {
        for row in rows.iter().filter(|row| row.level == *level) {
            let figures = &row.figures;
            let _ = writeln!(
                out,
                "| {level} | {} | {:.0} | {:.0} | {:.1} | {:.1} | {:.0} | {:.1} |",
                row.mode.name(),
                figures.ttft_p50_ms,
                figures.ttft_p95_ms,
                figures.itl_p50_ms,
                figures.e2e_p50_s,
                figures.tops,
                figures.hit_pct,
            );
        }
    }
    out
}
