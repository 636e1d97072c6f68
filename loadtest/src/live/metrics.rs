//! What Prometheus scrapes: the reference's names, and a few of ours.

use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType, Quantile, Summary};
use prometheus::{Encoder, TextEncoder};

use super::Collector;
use crate::measure::WindowSummary;

/// Quantiles of the summaries.
const SHARES: [f64; 2] = [0.5, 0.95];

fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

/// An empty window has no quantiles: they would be drawn as zero.
fn summary(name: &str, help: &str, of: &WindowSummary) -> MetricFamily {
    let mut summary = Summary::default();
    summary.set_sample_count(of.count);
    summary.set_sample_sum(of.sum);
    let quantile = |(share, value): &(f64, Option<f64>)| {
        let mut quantile = Quantile::default();
        quantile.set_quantile(*share);
        quantile.set_value((*value)?);
        Some(quantile)
    };
    summary.set_quantile(of.quantiles.iter().filter_map(quantile).collect());
    let mut metric = Metric::default();
    metric.set_summary(summary);
    family(name, help, MetricType::SUMMARY, vec![metric])
}

fn gauge(name: &str, help: &str, value: f64) -> MetricFamily {
    let mut gauge = Gauge::default();
    gauge.set_value(value);
    let mut metric = Metric::default();
    metric.set_gauge(gauge);
    family(name, help, MetricType::GAUGE, vec![metric])
}

fn counter(value: u64, label: Option<(&str, &str)>) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(value as f64);
    let mut metric = Metric::default();
    metric.set_counter(counter);
    let pair = label.map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value.to_owned());
        pair
    });
    metric.set_label(pair.into_iter().collect());
    metric
}

/// In Prometheus' text form. `wanted` is the concurrency asked for, where there is one.
pub fn exposition(collector: &Collector, wanted: Option<usize>) -> String {
    let (ttft, tpot) = collector.last_minute(&SHARES);
    let (requests, tokens, passed_over, errors) = collector.totals();
    let last = collector.live();
    let mut families = vec![
        summary("loadgen_ttft_all_seconds", "Time to first token; quantiles of the last 60 s", &ttft),
        summary(
            "loadgen_tpot_all_seconds",
            "Time per token after the first; quantiles of the last 60 s",
            &tpot,
        ),
        gauge("loadgen_active_conversations", "Conversations going on", collector.active() as f64),
        family(
            "loadgen_requests_total",
            "Requests that are over",
            MetricType::COUNTER,
            vec![counter(requests, None)],
        ),
        family(
            "loadgen_output_tokens_total",
            "Tokens of answers",
            MetricType::COUNTER,
            vec![counter(tokens, None)],
        ),
        family(
            "loadgen_errors_total",
            "Requests that failed, by class",
            MetricType::COUNTER,
            errors.iter().map(|(class, count)| counter(*count, Some(("class", class.name())))).collect(),
        ),
        family(
            "loadgen_conversations_passed_over_total",
            "Conversations not begun because there were too many",
            MetricType::COUNTER,
            vec![counter(passed_over, None)],
        ),
    ];
    let percent = |pct: Option<f64>| pct.map(|pct| pct / 100.0);
    for (name, help, value) in [
        ("loadgen_concurrency", "Conversations asked for", wanted.map(|wanted| wanted as f64)),
        ("loadgen_error_ratio", "Failed share of the last 60 s", percent(last.error_pct)),
        ("loadgen_goodput_ratio", "Share of the last 60 s within the objective", percent(last.goodput_pct)),
        ("loadgen_cached_ratio", "Cached share of prompt tokens of the last 60 s", percent(last.hit_pct)),
    ] {
        families.extend(value.map(|value| gauge(name, help, value)));
    }
    let mut text = Vec::new();
    // Writing to memory does not fail, and every family has a metric.
    let _ = TextEncoder::new().encode(&families, &mut text);
    String::from_utf8(text).unwrap_or_default()
}
