//! A sweep as people read it: tables for a terminal, Markdown, one HTML page with plots, CSV for spreadsheets, and
//! reference lines for Prometheus and Grafana. All of them are made from [`crate::results`] alone.

mod chart;
mod html;
mod lines;
mod reference;
mod table;
mod tables;

use std::path::{Path, PathBuf};

pub use self::html::html;
pub use self::lines::{grafana, rules};
pub(crate) use self::reference::RECORDED;
pub use self::reference::Reference;
pub use self::table::Table;
pub use self::tables::{Standing, standings, tables};
use crate::results::{METRICS, Results, write_whole};

/// For a terminal.
pub fn text(results: &Results) -> String {
    let parts = results.sets.iter().map(|set| {
        let heading =
            format!("{} ({}): {}\n{}\n", set.name, results.source.name(), set.about, conditions(set));
        let shown: String = tables(set, &results.objective).iter().map(Table::terminal).collect();
        heading + &shown
    });
    parts.collect::<Vec<_>>().join("\n")
}

pub fn markdown(results: &Results) -> String {
    let mut out = String::new();
    for set in &results.sets {
        out += &format!("\n## {} ({})\n\n{}.\n\n", set.name, results.source.name(), set.about);
        out += &format!("{}.\n", conditions(set));
        tables(set, &results.objective).iter().for_each(|table| out += &table.markdown());
    }
    out
}

/// One line for every cell, whether it counts or not.
pub fn csv(results: &Results) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let named = ["source", "set", "mode", "level", "levels_are", "repeat"].into_iter();
    writer
        .write_record(named.chain(METRICS.iter().map(|metric| metric.key)).chain(["invalid", "saturated"]))?;
    for set in &results.sets {
        for cell in &set.cells {
            let figures = cell.figures.unwrap_or_default();
            let mut record = vec![
                results.source.name().to_owned(),
                set.name.clone(),
                cell.mode.clone(),
                cell.level.to_string(),
                set.levels_are.clone(),
                cell.repeat.to_string(),
            ];
            let number = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
            record.extend(METRICS.iter().map(|metric| number((metric.of)(&figures))));
            record.extend([cell.invalid.clone(), cell.saturated.clone()].map(Option::unwrap_or_default));
            writer.write_record(record)?;
        }
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

/// Every form of it, in a directory: what was written.
pub fn write_all(results: &Results, dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    use anyhow::Context;
    std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let mut written = Vec::new();
    for (name, text) in [
        ("report.html", html(results)),
        ("report.md", markdown(results)),
        ("report.csv", csv(results)?),
        ("report.json", serde_json::to_string_pretty(results)?),
        ("reference-rules.yml", rules(results)),
        ("reference-lines.json", serde_json::to_string_pretty(&grafana(results))?),
    ] {
        let path = dir.join(name);
        write_whole(&path, text.as_bytes())?;
        written.push(path);
    }
    Ok(written)
}

/// What a reader has to know to judge the figures: think time above all.
fn conditions(set: &crate::results::Set) -> String {
    let known = |path: &[&str]| {
        path.iter().try_fold(&set.conditions, |at, key| at.get(key)).filter(|value| !value.is_null())
    };
    let mut said = vec![format!("levels are {}", set.levels_are)];
    for (what, path) in [
        ("think time (mean, s)", &["workload", "think_s"][..]),
        ("turns", &["workload", "turns"]),
        ("warm-up s", &["warm_up_s"]),
        ("measured s", &["window_s"]),
        ("snapshots", &["snapshots"]),
        ("first seed", &["first_seed"]),
        ("endpoint", &["url"]),
        ("model", &["model"]),
        ("tokens of an answer at most", &["workload", "max_tokens"]),
    ] {
        said.extend(known(path).map(|value| format!("{what}: {value}")));
    }
    let repeats = set.cells.iter().map(|cell| cell.repeat).collect::<std::collections::BTreeSet<_>>().len();
    said.push(match repeats {
        1 => "one repeat".to_owned(),
        _ => format!("{repeats} repeats; ± is the 95 % confidence interval of their mean"),
    });
    said.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::sweep;

    #[test]
    fn every_form_has_the_figures() {
        let results = sweep();
        let dir = std::env::temp_dir().join(format!("kvlane-report-{}", std::process::id()));
        let written = write_all(&results, &dir).unwrap();
        assert_eq!(written.len(), 6);
        let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
        let page = read("report.html");
        assert!(page.contains("<svg") && page.contains("kvlane: objective holds to c = 120"), "{page}");
        // One file: nothing is fetched from anywhere.
        assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("src="));
        let markdown = read("report.md");
        assert!(markdown.contains("| 60 | round_robin | 255") && markdown.contains("±"), "{markdown}");
        let mut lines = csv::Reader::from_reader(read("report.csv").as_bytes().to_vec().leak() as &[u8]);
        assert_eq!(lines.records().count(), 18);
        assert_eq!(Results::read(&dir.join("report.json")).unwrap(), results);
        std::fs::remove_dir_all(dir).unwrap();
        assert!(text(&results).contains("holds to c = 120"));
    }
}
