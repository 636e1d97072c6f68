//! Workers and their GPUs: from Prometheus where there is one, else from what workers say of themselves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kvlane_engine_adapters::process::since_1970;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::administration::Administration;
use crate::gauges::{self, Gauge};
use crate::http::Http;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Gpu {
    index: String,
    util_pct: Option<f64>,
    memory_used_mib: Option<f64>,
    memory_total_mib: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Card {
    name: String,
    state: Option<String>,
    gpus: Vec<Gpu>,
    requests: Option<u64>,
    running: Option<f64>,
    waiting: Option<f64>,
    slots: Option<u64>,
    kv_usage_pct: Option<f64>,
    cached_blocks: Option<u64>,
    kv_blocks: Option<u64>,
    evicted_blocks: Option<u64>,
    acceptance_pct: Option<f64>,
    trust: Option<f64>,
}

/// All of them at a moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Cards {
    #[serde(rename = "type")]
    kind: &'static str,
    t: f64,
    from: &'static str,
    prometheus: &'static str,
    gpu: Option<String>,
    model: Option<String>,
    workers: Vec<Card>,
}

#[derive(Debug)]
pub struct Infrastructure {
    http: Http,
    prometheus: Option<String>,
    last: Mutex<Option<(Instant, Arc<Cards>)>>,
}

/// What Prometheus knows of the router: the share of prompt tokens that came from caches in the last minute, requests that
/// wait for a slot, and those that wait for their first token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Scraped {
    pub(super) hit_pct: Option<f64>,
    pub(super) queued: Option<f64>,
    pub(super) before_first_token: Option<f64>,
}

/// However many look, workers are asked once in that time.
const FRESH: Duration = Duration::from_secs(1);

/// A worker that does not answer must not hold up the others for long.
const PATIENCE: Duration = Duration::from_secs(2);
const MOST_WORKERS: usize = 64;
const MOST_BYTES: usize = 1 << 20;
const UTIL: &str = "DCGM_FI_DEV_GPU_UTIL";
const USED: &str = "DCGM_FI_DEV_FB_USED";
const FREE: &str = "DCGM_FI_DEV_FB_FREE";

impl Infrastructure {
    pub fn new(prometheus: Option<&str>) -> anyhow::Result<Self> {
        let prometheus = prometheus.map(|url| url.trim_end_matches('/').to_owned());
        Ok(Self { http: Http::new(PATIENCE)?, prometheus, last: Mutex::default() })
    }

    /// How the router does, as Prometheus has it.
    pub(super) async fn asked_of_prometheus(&self) -> Scraped {
        let Some(prometheus) = &self.prometheus else { return Scraped::default() };
        let one = async |query: &str| {
            let answer = gauges::asked(&self.http, prometheus, query).await.ok()?;
            answer.first().map(|gauge| gauge.value).filter(|value| value.is_finite())
        };
        let share = "sum(rate(dynamo_frontend_cached_tokens_sum[1m])) / \
                     sum(rate(dynamo_frontend_input_sequence_tokens_sum[1m]))";
        let (share, queued, before_first_token) = tokio::join!(
            one(share),
            one("sum(kvlane_queue_requests)"),
            one("sum(dynamo_frontend_queued_requests)")
        );
        Scraped { hit_pct: share.map(|share| share * 100.0), queued, before_first_token }
    }

    pub(super) async fn look(&self, router: Option<&Administration>) -> Arc<Cards> {
        let mut last = self.last.lock().await;
        if let Some((at, cards)) = &*last
            && at.elapsed() < FRESH
        {
            return cards.clone();
        }
        let cards = Arc::new(self.asked(router).await);
        *last = Some((Instant::now(), cards.clone()));
        cards
    }

    async fn asked(&self, router: Option<&Administration>) -> Cards {
        let (scraped, prometheus) = self.scraped().await;
        let known = match router {
            Some(router) => router.workers().await.unwrap_or_default(),
            None => Value::Null,
        };
        let known = known["workers"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut cards = Vec::new();
        let (mut gpu, mut model) = (gpu_name(&scraped), None);
        let own = self.own(&known[..known.len().min(MOST_WORKERS)]).await;
        for (at, worker) in known.iter().enumerate() {
            let own = own.get(at).map_or(&[][..], Vec::as_slice);
            model = model.or_else(|| worker["models"][0].as_str().map(str::to_owned));
            gpu = gpu.or_else(|| gpu_name(own));
            let gpus = if scraped.is_empty() { gpus(own) } else { Vec::new() };
            cards.push(card(worker, own, gpus));
        }
        let from = if scraped.is_empty() { "workers" } else { "prometheus" };
        // Prometheus knows pods and not addresses: they stand beside the router's own cards.
        for (pod, of) in by_pod(&scraped) {
            let gpus = gpus(&of);
            // A worker is called by its pod's name, or by an address that begins with it.
            let its = |card: &&mut Card| card.name == pod || card.name.split([':', '.']).next() == Some(&pod);
            match cards.iter_mut().find(its) {
                Some(card) => card.gpus = gpus,
                None => cards.push(Card { name: pod, gpus, ..card(&Value::Null, &[], Vec::new()) }),
            }
        }
        cards.sort_by(|one, other| one.name.cmp(&other.name));
        let t = since_1970().as_secs_f64();
        Cards { kind: "workers", t, from, prometheus, gpu, model, workers: cards }
    }

    /// GPUs as Prometheus has them, and whether it answers.
    async fn scraped(&self) -> (Vec<Gauge>, &'static str) {
        let Some(prometheus) = &self.prometheus else { return (Vec::new(), "not_configured") };
        let query = format!("{{__name__=~\"{UTIL}|{USED}|{FREE}\"}}");
        match gauges::asked(&self.http, prometheus, &query).await {
            Ok(found) => (found, "ok"),
            Err(_) => (Vec::new(), "unavailable"),
        }
    }

    /// Each worker's own metrics, asked at once; none of one that does not answer.
    async fn own(&self, workers: &[Value]) -> Vec<Vec<Gauge>> {
        let mut asked = tokio::task::JoinSet::new();
        for (at, worker) in workers.iter().enumerate() {
            let (http, url) = (self.http.clone(), worker["url"].as_str().unwrap_or_default().to_owned());
            asked.spawn(async move {
                let text = http.get(&format!("{}/metrics", url.trim_end_matches('/')), MOST_BYTES).await;
                (at, text.map(|text| gauges::read(&String::from_utf8_lossy(&text))).unwrap_or_default())
            });
        }
        let mut own = vec![Vec::new(); workers.len()];
        while let Some(Ok((at, found))) = asked.join_next().await {
            own[at] = found;
        }
        own
    }
}

fn by_pod(gauges: &[Gauge]) -> BTreeMap<String, Vec<Gauge>> {
    let mut pods: BTreeMap<String, Vec<Gauge>> = BTreeMap::new();
    for gauge in gauges {
        let label = |name: &str| gauge.labels.get(name).filter(|value| !value.is_empty());
        if let Some(pod) = label("exported_pod").or(label("pod")).or(label("Hostname")) {
            pods.entry(pod.clone()).or_default().push(gauge.clone());
        }
    }
    pods
}

/// The hardware's name without its maker's, and whether it is played.
fn gpu_name(gauges: &[Gauge]) -> Option<String> {
    let gauge = gauges.iter().find(|gauge| gauge.name == UTIL)?;
    let name = gauge.labels.get("modelName")?;
    let maker = name.split_once(' ').filter(|(maker, _)| maker.eq_ignore_ascii_case("nvidia"));
    let name = maker.map_or(name.as_str(), |(_, name)| name);
    let played = gauge.labels.get("simulated").is_some_and(|simulated| simulated == "true");
    // A simulated engine is called by hardware and model.
    let hardware = name.split('-').next().unwrap_or(name).to_uppercase();
    Some(if played { format!("{hardware} (simulated)") } else { name.to_owned() })
}

fn gpus(gauges: &[Gauge]) -> Vec<Gpu> {
    let mut indexes: Vec<&str> =
        gauges.iter().filter(|gauge| gauge.name.starts_with("DCGM_")).filter_map(index).collect();
    indexes.sort_unstable();
    indexes.dedup();
    let gpu = |at: &&str| {
        let of = |name: &str| {
            gauges.iter().find(|gauge| gauge.name == name && index(gauge) == Some(*at)).map(|of| of.value)
        };
        Gpu {
            index: (*at).to_owned(),
            util_pct: of(UTIL),
            memory_used_mib: of(USED),
            memory_total_mib: of(USED).zip(of(FREE)).map(|(used, free)| used + free),
        }
    };
    indexes.iter().map(gpu).collect()
}

fn index(gauge: &Gauge) -> Option<&str> {
    gauge.labels.get("gpu").map(String::as_str)
}

fn sum(of: &Value, key: &str) -> Option<u64> {
    Some(of.as_array()?.iter().filter_map(|item| item[key].as_u64()).sum())
}

/// Blocks the worker said it evicted, all its ranks together.
pub(super) fn evicted_blocks(worker: &Value) -> Option<u64> {
    sum(&worker["events"]["ranks"], "removed_blocks")
}

/// Blocks the router knows it to hold.
pub(super) fn cached_blocks(worker: &Value) -> Option<u64> {
    sum(&worker["load"], "held_blocks")
}

fn card(worker: &Value, own: &[Gauge], gpus: Vec<Gpu>) -> Card {
    let load = &worker["engine_load"];
    let drafts = gauges::sum(own, "vllm:spec_decode_num_draft_tokens_total").filter(|drafts| *drafts > 0.0);
    let accepted = gauges::sum(own, "vllm:spec_decode_num_accepted_tokens_total");
    Card {
        name: worker["name"].as_str().unwrap_or_default().to_owned(),
        state: worker["state"].as_str().map(str::to_owned),
        gpus,
        requests: sum(&worker["load"], "requests"),
        running: load["running"].as_f64(),
        waiting: load["waiting"].as_f64(),
        slots: worker["slots"].as_u64(),
        kv_usage_pct: load["kv_usage"].as_f64().map(|share| share * 100.0),
        cached_blocks: cached_blocks(worker),
        kv_blocks: worker["kv_blocks"].as_u64(),
        evicted_blocks: evicted_blocks(worker),
        acceptance_pct: drafts.zip(accepted).map(|(drafts, accepted)| 100.0 * accepted / drafts),
        trust: worker["index"]["trust"].as_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_shown_with_its_gpus() {
        let own = gauges::read(
            "DCGM_FI_DEV_GPU_UTIL{gpu=\"1\",modelName=\"NVIDIA H200\"} 63\nDCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 12\n\
             DCGM_FI_DEV_FB_USED{gpu=\"1\"} 129393\nDCGM_FI_DEV_FB_FREE{gpu=\"1\"} 14378\n\
             vllm:spec_decode_num_draft_tokens_total 200\nvllm:spec_decode_num_accepted_tokens_total 124\n",
        );
        assert_eq!(gpu_name(&own).as_deref(), Some("H200"));
        let worker = serde_json::json!({
            "name": "w-0", "state": "ready", "slots": 64, "kv_blocks": 1000, "index": {"trust": 1.0},
            "load": [{"requests": 3, "held_blocks": 300}, {"requests": 4, "held_blocks": 500}], "engine_load": {"running": 6, "waiting": 1, "kv_usage": 0.25},
            "events": {"ranks": [{"stored_blocks": 900, "removed_blocks": 100}]},
        });
        let card = card(&worker, &own, gpus(&own));
        assert_eq!((card.gpus.len(), card.gpus[1].memory_total_mib), (2, Some(143_771.0)));
        assert_eq!((card.gpus[0].util_pct, card.gpus[0].memory_total_mib), (Some(12.0), None));
        assert_eq!((card.requests, card.cached_blocks, card.evicted_blocks), (Some(7), Some(800), Some(100)));
        assert_eq!((card.kv_usage_pct, card.acceptance_pct), (Some(25.0), Some(62.0)));
    }
}
