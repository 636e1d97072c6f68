//! Numbers with names and labels: read from a process' own metrics, or asked of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::http::Http;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Gauge {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

const MOST_BYTES: usize = 4 << 20;

/// What a process shows at `/metrics`. Lines that are none are passed over.
pub(crate) fn read(text: &str) -> Vec<Gauge> {
    text.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<Gauge> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let name_end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(name_end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            rest = rest.trim_start_matches([',', ' ']);
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            let (key, value) = rest.split_once("=\"")?;
            let (value, after) = quoted(value)?;
            labels.insert(key.trim().to_owned(), value);
            rest = after;
        }
    }
    // A time may follow.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Gauge { name: name.to_owned(), labels, value })
}

/// A text up to its closing quote, and what comes behind it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match letters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

/// All of a name, added up; none when there is none.
pub(crate) fn sum(gauges: &[Gauge], name: &str) -> Option<f64> {
    let mut of = gauges.iter().filter(|gauge| gauge.name == name).map(|gauge| gauge.value).peekable();
    of.peek().is_some().then(|| of.sum())
}

/// What Prometheus answers to a query now.
pub(crate) async fn asked(http: &Http, prometheus: &str, query: &str) -> anyhow::Result<Vec<Gauge>> {
    let mut url = format!("{}/api/v1/query?query=", prometheus.trim_end_matches('/'));
    for byte in query.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' => url.push(char::from(byte)),
            byte => _ = write!(url, "%{byte:02X}"),
        }
    }
    let answer: Value = serde_json::from_slice(&http.get(&url, MOST_BYTES).await?).context("an answer")?;
    ensure!(answer["status"] == "success", "{}", answer["error"].as_str().unwrap_or("no answer"));
    let results = answer["data"]["result"].as_array().map(Vec::as_slice).unwrap_or_default();
    let gauge = |result: &Value| {
        let value = result["value"][1].as_str()?.parse::<f64>().ok().filter(|value| value.is_finite())?;
        let mut labels: BTreeMap<String, String> = result["metric"]
            .as_object()?
            .iter()
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect();
        let name = labels.remove("__name__").unwrap_or_default();
        Some(Gauge { name, labels, value })
    };
    Ok(results.iter().filter_map(gauge).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_read_with_their_labels() {
        let text = "# HELP up x\n# TYPE up gauge\nup 1\nqueue{model=\"a \\\"b\\\" {c}\",priority=\"0\",} 2.5 1700000000\n\
                    queue{model=\"d\"} 4\nbroken{a=\"b\nnone\n";
        let gauges = read(text);
        assert_eq!(gauges.len(), 3);
        assert_eq!((gauges[0].name.as_str(), gauges[0].value), ("up", 1.0));
        assert_eq!(gauges[1].labels["model"], "a \"b\" {c}");
        assert_eq!((sum(&gauges, "queue"), sum(&gauges, "other")), (Some(6.5), None));
    }
}
