//! One page that can be mailed: no script, no font, nothing fetched.

use super::chart::{Chart, Series};
use super::reference::Reference;
use super::table::{Table, escape};
use super::{conditions, tables};
use crate::results::{METRICS, Results, Set};

const STYLE: &str = "
:root { color-scheme: light dark; --line: #8884; --quiet: #777; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1340px; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0 } .quiet { color: var(--quiet) }
.headline { font-size: 1.25rem; border-left: 4px solid #0072b2; padding-left: .8rem }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 1rem }
figure { margin: 0; border: 1px solid var(--line); border-radius: 6px; padding: .5rem } svg { width: 100%; height: auto }
svg text { fill: currentColor; font-size: 11px } svg .title { font-size: 14px; font-weight: 600 } svg .tick { fill: var(--quiet) }
.grid { stroke: var(--line) } .limit { stroke: #c00; stroke-dasharray: 2 3; stroke-width: 1.5 }
figcaption { font-size: 13px } div.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap }
";

pub fn html(results: &Results) -> String {
    let source = results.source.name();
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>Load report ({source})</title><style>{STYLE}</style></head><body><h1>Load report</h1>\
         <p class=\"quiet\">All figures are {source}, but for curves and numbers that say recorded; kvlane-load {}.</p>",
        escape(&results.version)
    );
    for set in &results.sets {
        out += &format!("<h2>{}</h2><p>{}.</p>", escape(&set.name), escape(&set.about));
        out += &format!("<p class=\"headline\">{}</p>", escape(&headline(results, set)));
        out += &format!("<p class=\"quiet\">{}.</p><div class=\"charts\">", escape(&conditions(set)));
        charts(results, set).iter().for_each(|chart| out += &chart.svg());
        out += "</div>";
        let shown = |table: &Table| format!("<div class=\"wide\">{}</div>", table.html());
        out.extend(tables(set, &results.objective).iter().map(shown));
    }
    out + "</body></html>\n"
}

/// How far each mode keeps the promise.
fn headline(results: &Results, set: &Set) -> String {
    let standings = super::standings(set, &results.objective);
    let said = standings.iter().map(|standing| format!("{}: {}", standing.mode, standing.words(set)));
    said.collect::<Vec<_>>().join("; ")
}

fn charts<'a>(results: &Results, set: &'a Set) -> Vec<Chart<'a>> {
    let reference = Reference::of(set);
    let objective = &results.objective;
    let limit = |key: &str| match key {
        "ttft_p50_ms" | "ttft_p95_ms" => Some(objective.ttft_s * 1e3),
        "itl_p95_ms" => Some(objective.tpot_s * 1e3),
        _ => None,
    };
    let drawn = ["ttft_p95_ms", "ttft_p50_ms", "tops", "itl_p95_ms", "e2e_p50_s", "hit_pct"];
    let chart = |key: &str| {
        let metric = METRICS.iter().find(|metric| metric.key == key)?;
        let curve = |mode: &str| {
            let point = |level: usize| Some((level as f64, (metric.of)(&set.mean(mode, level)?.0)?));
            set.levels().into_iter().filter_map(point).collect()
        };
        let mut series: Vec<Series> = set
            .modes()
            .into_iter()
            .enumerate()
            .map(|(n, mode)| Series { name: mode.to_owned(), points: curve(mode), dashed: false, like: n })
            .collect();
        for (mode, name) in [("round_robin", "round robin, recorded"), ("dynamo", "plain cost, recorded")] {
            let Some(reference) = &reference else { continue };
            // In the colour of the mode it was, where that is there.
            let like = set.modes().iter().position(|of| *of == mode).unwrap_or(series.len());
            series.push(Series {
                name: name.to_owned(),
                points: reference.curve(mode, key),
                dashed: true,
                like,
            });
        }
        Some(Chart {
            title: metric.title,
            across: &set.levels_are,
            unit: metric.unit,
            series,
            limit: limit(key),
        })
    };
    drawn.into_iter().filter_map(chart).collect()
}
