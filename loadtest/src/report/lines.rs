//! Reference lines: what a sweep found, for dashboards to draw beside what is happening now.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::results::{METRICS, Results, Set};

/// A figure under the name dashboards know it by.
struct Line {
    name: &'static str,
    key: &'static str,
    quantile: Option<&'static str>,
    /// From the figure's unit to the name's.
    scale: f64,
}

const LINES: [Line; 8] = [
    Line { name: "demo_baseline_ttft_seconds", key: "ttft_p50_ms", quantile: Some("0.5"), scale: 1e-3 },
    Line { name: "demo_baseline_ttft_seconds", key: "ttft_p95_ms", quantile: Some("0.95"), scale: 1e-3 },
    Line { name: "demo_baseline_itl_seconds", key: "itl_p50_ms", quantile: Some("0.5"), scale: 1e-3 },
    Line { name: "demo_baseline_itl_seconds", key: "itl_p95_ms", quantile: Some("0.95"), scale: 1e-3 },
    Line { name: "demo_baseline_latency_seconds", key: "e2e_p50_s", quantile: Some("0.5"), scale: 1.0 },
    Line { name: "demo_baseline_latency_seconds", key: "e2e_p95_s", quantile: Some("0.95"), scale: 1.0 },
    Line { name: "demo_baseline_output_tokens_per_second", key: "tops", quantile: None, scale: 1.0 },
    Line { name: "demo_baseline_kv_hit_ratio", key: "hit_pct", quantile: None, scale: 1e-2 },
];

/// Recording rules whose value never changes.
pub fn rules(results: &Results) -> String {
    let mut out = format!(
        "# Made by `kvlane-load report` from {} figures.\ngroups:\n  - name: kvlane-baselines\n    rules:\n",
        results.source.name()
    );
    let quoted = |text: &str| json!(text).to_string();
    // A label that says concurrency has to be one.
    for set in results.sets.iter().filter(|set| set.levels_are == "conversations at a time") {
        for line in &LINES {
            let Some(metric) = METRICS.iter().find(|metric| metric.key == line.key) else { continue };
            for mode in set.modes() {
                for level in set.levels() {
                    let Some(value) = set.mean(mode, level).and_then(|(mean, _)| (metric.of)(&mean)) else {
                        continue;
                    };
                    let _ = writeln!(
                        out,
                        "      - record: {}\n        expr: vector({})\n        labels:\n          mode: {}\n          concurrency: \"{level}\"\n          workload: {}\n          source: {}",
                        line.name,
                        value * line.scale,
                        quoted(mode),
                        quoted(&set.name),
                        results.source.name(),
                    );
                    if let Some(quantile) = line.quantile {
                        let _ = writeln!(out, "          quantile: \"{quantile}\"");
                    }
                }
            }
        }
    }
    out
}

/// A dashboard with the same lines beside the generator's own metrics; the level is chosen at its top.
pub fn grafana(results: &Results) -> Value {
    let mut levels: Vec<usize> = results.sets.iter().flat_map(|set| set.levels()).collect();
    levels.sort_unstable();
    levels.dedup();
    let mut modes: Vec<&str> = Vec::new();
    for mode in results.sets.iter().flat_map(Set::modes) {
        if !modes.contains(&mode) {
            modes.push(mode);
        }
    }
    let panel = |n: usize, title: &str, unit: &str, live: &str, recorded: &str, limit: Option<f64>| {
        let mut targets = vec![json!({"refId": "live", "expr": live, "legendFormat": "live"})];
        targets.extend(modes.iter().enumerate().map(|(m, mode)| {
            let chosen = json!(mode).to_string();
            let (open, rest) = recorded.split_once('{').unwrap_or((recorded, "}"));
            let expr = format!("{open}{{mode={chosen},concurrency=\"$concurrency\",workload=\"$workload\",{rest}");
            json!({"refId": format!("recorded{m}"), "expr": expr, "legendFormat": format!("{mode}, {}", results.source.name())})
        }));
        let steps = match limit {
            Some(limit) => json!([{"color": "green", "value": null}, {"color": "red", "value": limit}]),
            None => json!([{"color": "green", "value": null}]),
        };
        json!({
            "id": n + 1, "type": "timeseries", "title": title, "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "gridPos": {"h": 9, "w": 12, "x": 12 * (n % 2), "y": 9 * (n / 2)}, "targets": targets,
            "fieldConfig": {
                "defaults": {"unit": unit, "thresholds": {"mode": "absolute", "steps": steps},
                    "custom": {"thresholdsStyle": {"mode": if limit.is_some() { "line" } else { "off" }}}},
                "overrides": [{
                    "matcher": {"id": "byRegexp", "options": format!("/, {}$/", results.source.name())},
                    "properties": [{"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}}],
                }],
            },
        })
    };
    let (ttft, tpot) = (Some(results.objective.ttft_s), Some(results.objective.tpot_s));
    let panels = [
        (
            "TTFT p95",
            "s",
            "loadgen_ttft_all_seconds{quantile=\"0.95\"}",
            "demo_baseline_ttft_seconds{quantile=\"0.95\"}",
            ttft,
        ),
        (
            "TTFT p50",
            "s",
            "loadgen_ttft_all_seconds{quantile=\"0.5\"}",
            "demo_baseline_ttft_seconds{quantile=\"0.5\"}",
            ttft,
        ),
        (
            "Time per token p95",
            "s",
            "loadgen_tpot_all_seconds{quantile=\"0.95\"}",
            "demo_baseline_itl_seconds{quantile=\"0.95\"}",
            tpot,
        ),
        (
            "Output tokens a second",
            "short",
            "rate(loadgen_output_tokens_total[1m])",
            "demo_baseline_output_tokens_per_second{}",
            None,
        ),
    ];
    let panels: Vec<Value> = panels
        .into_iter()
        .enumerate()
        .map(|(n, (title, unit, live, recorded, limit))| panel(n, title, unit, live, recorded, limit))
        .collect();
    let options: Vec<Value> = levels
        .iter()
        .map(|level| json!({"text": level.to_string(), "value": level.to_string(), "selected": false}))
        .collect();
    let first = levels.first().map(ToString::to_string).unwrap_or_default();
    let names: Vec<&String> = results.sets.iter().map(|set| &set.name).collect();
    let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    let query: Vec<String> = levels.iter().map(ToString::to_string).collect();
    json!({
        "uid": "kvlane-reference", "title": format!("Live beside {} figures", results.source.name()), "schemaVersion": 39, "version": 1, "editable": true,
        "refresh": "5s", "time": {"from": "now-15m", "to": "now"}, "tags": ["kvlane"],
        "templating": {"list": [
            {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
            {"name": "concurrency", "type": "custom", "label": "Reference at", "query": query.join(","), "options": options,
             "current": {"text": first, "value": first}},
            {"name": "workload", "type": "custom", "label": "Workload", "query": names.join(","),
             "options": names.iter().map(|name| json!({"text": name, "value": name, "selected": false})).collect::<Vec<_>>(),
             "current": {"text": names.first(), "value": names.first()}},
        ]},
        "panels": panels,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::sweep;

    #[test]
    fn lines_are_in_the_names_units_and_every_one_is_asked_for() {
        let results = sweep();
        let rules = rules(&results);
        assert!(rules.contains("- record: demo_baseline_ttft_seconds\n        expr: vector(0.51)\n        labels:\n          mode: \"round_robin\"\n          concurrency: \"60\""), "{rules}");
        assert!(rules.contains("expr: vector(0.9)\n"), "{rules}");
        // Two modes, three levels, eight figures.
        assert_eq!(rules.matches("- record:").count(), 48);
        let board = grafana(&results);
        let exprs: Vec<&str> = board["panels"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|panel| panel["targets"].as_array().unwrap())
            .map(|target| target["expr"].as_str().unwrap())
            .collect();
        assert_eq!(exprs.len(), 12);
        assert_eq!(
            exprs[1],
            "demo_baseline_ttft_seconds{mode=\"round_robin\",concurrency=\"$concurrency\",workload=\"$workload\",quantile=\"0.95\"}"
        );
        assert_eq!(
            exprs[10],
            "demo_baseline_output_tokens_per_second{mode=\"round_robin\",concurrency=\"$concurrency\",workload=\"$workload\",}"
        );
        for expr in exprs.iter().filter(|expr| expr.starts_with("demo_")) {
            let name = expr.split('{').next().unwrap();
            assert!(rules.contains(&format!("record: {name}\n")), "{name}");
        }
    }
}
