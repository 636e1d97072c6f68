//! Documents that are written from the code say what the code says. `KVLANE_WRITE=1` writes them anew.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use kvlane_router::cli::print_reference;
use kvlane_router::metrics::{Declared, Metrics};

use crate::support::{Bed, NatsServer, engine, get, question, router, start, until};

fn is_as_written(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    if std::env::var_os("KVLANE_WRITE").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == text,
        "docs/{name} is not what the code says: KVLANE_WRITE=1 cargo test -p kvlane-router --test all reference"
    );
}

#[test]
fn settings_are_those_of_the_code() {
    let mut text = Vec::new();
    print_reference(&mut text).unwrap();
    is_as_written("configuration.md", &String::from_utf8(text).unwrap());
}

/// What is exposed, by name: kind, meaning, labels.
fn exposed(text: &str) -> BTreeMap<String, Declared> {
    let mut found: BTreeMap<String, Declared> = BTreeMap::new();
    for line in text.lines() {
        let (name, rest) = match line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE ")) {
            Some(line) => line.split_once(' ').unwrap(),
            None => continue,
        };
        let metric = found.entry(name.to_owned()).or_insert_with(|| Declared {
            name: name.to_owned(),
            kind: String::new(),
            help: String::new(),
            labels: Vec::new(),
        });
        if line.starts_with("# HELP ") {
            metric.help = rest.to_owned();
        } else {
            metric.kind = rest.to_owned();
        }
    }
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, rest)) = line.split_once('{') else { continue };
        let plain = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let name = plain.filter(|plain| found.contains_key(*plain)).unwrap_or(name);
        let Some(metric) = found.get_mut(name) else { continue };
        let labels = rest.rsplit_once('}').unwrap().0.split("\",").filter_map(|label| label.split_once('='));
        for (label, _) in labels {
            if label != "le" && !metric.labels.iter().any(|known| known == label) {
                metric.labels.push(label.to_owned());
            }
        }
    }
    found
}

#[tokio::test]
async fn metrics_are_those_of_the_code() {
    let nats = NatsServer::start();
    let url = format!("nats://127.0.0.1:{}", nats.1);
    // One that says its slots, so that what is known of those is there.
    let worker = start(engine()).await;
    let spec = format!("url=http://{},slots=8", worker.address());
    let app = router(&[spec], &["--holdout", "0.5", "--nats-url", &url]).await;
    let bed = Bed { workers: vec![worker], app };
    bed.ready().await;
    until("a known prompt", || async {
        bed.chat(&question("metrics")).await;
        bed.metric("kvlane_index_distinct_blocks").await.unwrap_or(0.0) > 0.0
    })
    .await;
    let text = get(bed.address(), "/metrics").await.body;
    let mut all = exposed(&text);
    for declared in Metrics::register().unwrap().declared() {
        all.insert(declared.name.clone(), declared.clone());
    }
    // Every name that the code has.
    let source = include_str!("../src/http/exposition.rs");
    let words: Vec<&str> = source.split('"').collect();
    for (name, kind, labels) in RARE {
        // What it means is the next text of the code.
        let at = words.iter().position(|word| *word == name).unwrap_or_else(|| panic!("{name} is gone"));
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        let rare =
            Declared { name: name.to_owned(), kind: kind.to_owned(), help: words[at + 2].to_owned(), labels };
        all.entry(name.to_owned()).or_insert(rare);
    }
    let named: BTreeSet<&str> =
        words.into_iter().filter(|word| word.starts_with("kvlane_") || word.starts_with("dynamo_")).collect();
    let missing: Vec<_> =
        named.into_iter().filter(|name| !all.contains_key(*name) && !LABELS.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let mut page = String::from(
        "# Metrics\n\nWritten by `KVLANE_WRITE=1 cargo test -p kvlane-router --test all reference`. `GET /metrics` of the router, on \
         its own port and on the administration's. Names that begin with `dynamo_` are Dynamo's, with its labels; `namespace` and \
         `pod` come from the scrape.\n\n| metric | kind | labels | |\n|---|---|---|---|\n",
    );
    for metric in all.values() {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        page += &format!(
            "| `{}` | {} | {} | {} |\n",
            metric.name,
            metric.kind,
            labels.join(", "),
            metric.help.replace('|', "\\|")
        );
    }
    is_as_written("metrics.md", &page);
}

/// Metrics that are there only when something is wrong.
const RARE: [(&str, &str, &[&str]); 1] = [("kvlane_overlap_suspect", "gauge", &["worker", "cause"])];
/// Words of the code that are labels and no metrics.
const LABELS: [&str; 3] = ["dynamo_namespace", "dynamo_component", "dynamo_endpoint"];
