//! `/metrics`: what was counted, and the state of things as it is now.

use std::collections::BTreeMap;
use std::sync::Arc;

use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use kvlane_engine_adapters::feed::{FeedReport, FeedState, LAG_BOUNDS_MS};
use kvlane_indexer::WorkerId;

use crate::app::Router;
use crate::discovery::{Worker, WorkerState};
use crate::metrics::Kind::{Counter, Gauge};
use crate::metrics::{Exposition, Kind};
use crate::proxy::Body;
use crate::scheduling::{Load, Priority, Waiting};

pub(super) fn answer(router: &Router) -> Response<Body> {
    let mut text = router.metrics.text();
    text.push_str(&now(router));
    let mut response = Response::new(Body::Whole(text.into()));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

type Series<'l> = (Vec<(&'l str, String)>, f64);

fn now(router: &Router) -> String {
    let mut out = Exposition::default();
    let fleet = router.keeper.fleet();
    out.metric(
        "kvlane_build_info",
        Gauge,
        "The version that runs.",
        [(vec![("version", env!("CARGO_PKG_VERSION").to_owned())], 1.0)],
    );
    out.metric(
        "kvlane_ready",
        Gauge,
        "Whether /ready says yes.",
        [(vec![], f64::from(router.ready().is_ok()))],
    );
    out.metric(
        "kvlane_mode",
        Gauge,
        "How requests are placed.",
        [(vec![("mode", router.mode().name().to_owned())], 1.0)],
    );
    out.metric(
        "kvlane_tasks",
        Gauge,
        "Tasks the router has running or waiting: connections, feeds, watchers.",
        [(vec![], tokio::runtime::Handle::current().metrics().num_alive_tasks() as f64)],
    );
    models(router, &mut out);
    workers(router, &fleet.workers, &mut out);
    waiting(router, &mut out);
    safety(router, &mut out);
    feeds(&fleet.workers, router, &mut out);
    index(router, &mut out);
    tokenizer(router, &mut out);
    out.text()
}

fn models(router: &Router, out: &mut Exposition) {
    let fleet = router.keeper.fleet();
    let of = |value: &dyn Fn(&crate::discovery::Served) -> Option<f64>| -> Vec<Series<'static>> {
        let series = fleet.models.values();
        series.filter_map(|served| Some((vec![("model", served.name.clone())], value(served)?))).collect()
    };
    out.metric(
        "dynamo_frontend_model_ready",
        Gauge,
        "Whether a worker for the model is ready.",
        of(&|served| Some(f64::from(served.ready().next().is_some()))),
    );
    out.metric(
        "dynamo_frontend_model_context_length",
        Gauge,
        "Tokens a prompt and its answer may have.",
        of(&|served| served.max_len.map(|len| len as f64)),
    );
    out.metric(
        "dynamo_frontend_model_kv_cache_block_size",
        Gauge,
        "Tokens in a KV block.",
        of(&|served| Some(served.group.block_size.tokens() as f64)),
    );
    let sum = |of: &dyn Fn(&Worker) -> Option<u64>, served: &crate::discovery::Served| {
        let known: Vec<u64> = served.workers.iter().filter_map(|worker| of(worker)).collect();
        (!known.is_empty()).then(|| known.iter().sum::<u64>() as f64)
    };
    out.metric(
        "dynamo_frontend_model_total_kv_blocks",
        Gauge,
        "KV blocks of all workers.",
        of(&|served| sum(&|worker| worker.about().kv_blocks, served)),
    );
    out.metric(
        "dynamo_frontend_model_max_num_seqs",
        Gauge,
        "Requests all workers run at a time.",
        of(&|served| sum(&|worker| worker.slots().map(|slots| slots as u64), served)),
    );
}

fn workers(router: &Router, workers: &[Arc<Worker>], out: &mut Exposition) {
    let named = |worker: &Worker| ("worker", worker.name.clone());
    let each = |of: &dyn Fn(&Worker) -> Option<f64>| -> Vec<Series<'static>> {
        workers.iter().filter_map(|worker| Some((vec![named(worker)], of(worker)?))).collect()
    };
    let states = workers.iter().flat_map(|worker| {
        WorkerState::ALL.map(|state| {
            let labels = vec![named(worker), ("state", state.name().to_owned())];
            (labels, f64::from(worker.state() == state))
        })
    });
    out.metric("kvlane_worker_state", Gauge, "1 for the state a worker is in.", states);
    out.metric(
        "kvlane_breaker_open",
        Gauge,
        "Whether a worker is out because its requests failed; 0.5 while it is tried again.",
        each(&|worker| {
            Some(match worker.breaker.state() {
                crate::proxy::breaker::BreakerState::Closed => 0.0,
                crate::proxy::breaker::BreakerState::HalfOpen => 0.5,
                crate::proxy::breaker::BreakerState::Open => 1.0,
            })
        }),
    );
    out.metric(
        "kvlane_breaker_opened_total",
        Counter,
        "Times a worker was taken out because its requests failed.",
        each(&|worker| Some(worker.breaker.opened() as f64)),
    );
    let events = &router.config.events;
    let dynamo = |worker: &Worker| {
        vec![
            ("dynamo_namespace", events.namespace.clone()),
            ("dynamo_component", events.component.clone()),
            ("dynamo_endpoint", events.endpoint.clone()),
            ("worker_id", worker.instance.to_string()),
            named(worker),
        ]
    };
    let load = |worker: &Worker| {
        let mut sum = Load::default();
        for rank in &worker.about().ranks {
            let load = router.scheduler.load(WorkerId::new(worker.instance, *rank));
            sum = sum.and(load);
        }
        sum
    };
    out.metric(
        "dynamo_component_inflight_requests",
        Gauge,
        "Requests placed on a worker and not yet over, as this router counts them.",
        workers.iter().map(|worker| (dynamo(worker), load(worker).requests as f64)),
    );
    let by_rank = |of: &dyn Fn(Load) -> usize| -> Vec<Series<'static>> {
        let ranks = workers.iter().flat_map(|worker| {
            worker.about().ranks.iter().map(|rank| WorkerId::new(worker.instance, *rank)).collect::<Vec<_>>()
        });
        let labels = |id: WorkerId| {
            vec![
                ("worker_id", id.instance.to_string()),
                ("dp_rank", id.dp_rank.to_string()),
                ("worker_type", "decode".to_owned()),
            ]
        };
        ranks.map(|id| (labels(id), of(router.scheduler.load(id)) as f64)).collect()
    };
    out.metric(
        "dynamo_frontend_worker_active_decode_blocks",
        Gauge,
        "Distinct prompt blocks in use by requests placed on a worker.",
        by_rank(&|load| load.blocks),
    );
    out.metric(
        "dynamo_frontend_worker_active_prefill_tokens",
        Gauge,
        "Prompt tokens placed on a worker that it has yet to compute.",
        by_rank(&|load| load.prefill_tokens),
    );
    out.metric(
        "kvlane_worker_slots",
        Gauge,
        "Requests a worker runs at a time, where that is known.",
        each(&|worker| worker.slots().map(|slots| slots as f64)),
    );
    out.metric(
        "kvlane_worker_idle_connections",
        Gauge,
        "Connections to a worker that wait for the next request.",
        each(&|worker| Some(worker.connections.idle() as f64)),
    );
    out.metric(
        "kvlane_worker_other_requests",
        Gauge,
        "Requests the engine has that no router placed there, as far as is known.",
        each(&|worker| Some(worker.strangers() as f64)),
    );
    out.metric(
        "kvlane_overlap_trust_ratio",
        Gauge,
        "Share of what the index says of a worker that is believed, after what the worker reported.",
        each(&|worker| Some(worker.belief.trust())),
    );
    out.metric(
        "kvlane_overlap_suspect",
        Gauge,
        "Whether the index was found wrong about a worker, and the likely cause.",
        workers.iter().filter_map(|worker| {
            let cause = worker.belief.report().suspect?;
            Some((vec![named(worker), ("cause", cause.to_owned())], 1.0))
        }),
    );
    out.metric(
        "kvlane_overlap_resyncs_total",
        Counter,
        "Times what is known of a worker's cache was learnt again because it proved wrong.",
        each(&|worker| Some(worker.belief.report().resyncs as f64)),
    );
    out.metric(
        "kvlane_worker_total_blocks",
        Gauge,
        "Blocks of all requests placed on a worker, shared ones counted for each, answers included.",
        workers.iter().map(|worker| (vec![named(worker)], load(worker).total_blocks as f64)),
    );
    out.metric(
        "kvlane_engine_running_requests",
        Gauge,
        "Requests the engine says it runs.",
        each(&|worker| worker.engine_load().running.map(|count| count as f64)),
    );
    out.metric(
        "kvlane_engine_waiting_requests",
        Gauge,
        "Requests the engine says are waiting.",
        each(&|worker| worker.engine_load().waiting.map(|count| count as f64)),
    );
    out.metric(
        "kvlane_engine_kv_usage_ratio",
        Gauge,
        "Share of KV blocks the engine says are in use by requests.",
        each(&|worker| worker.engine_load().kv_usage),
    );
}

fn waiting(router: &Router, out: &mut Exposition) {
    let fleet = router.keeper.fleet();
    let of = |value: &dyn Fn(Waiting) -> f64| -> Vec<Series<'static>> {
        // Adapters wait with their base.
        let bases = fleet.models.values().filter(|served| served.name == served.group.name);
        let each = bases.flat_map(|served| {
            let waiting = served.group.room.waiting();
            Priority::ALL.into_iter().zip(waiting).map(move |(priority, waiting)| {
                let labels = vec![("model", served.name.clone()), ("priority", priority.name().to_owned())];
                (labels, waiting)
            })
        });
        each.map(|(labels, waiting)| (labels, value(waiting))).collect()
    };
    out.metric(
        "kvlane_queue_requests",
        Gauge,
        "Requests waiting in the router for a worker with room.",
        of(&|waiting| waiting.requests as f64),
    );
    out.metric(
        "kvlane_queue_oldest_seconds",
        Gauge,
        "How long the oldest of them has waited.",
        of(&|waiting| waiting.oldest.as_secs_f64()),
    );
}

fn safety(router: &Router, out: &mut Exposition) {
    let safety = router.scheduler.safety();
    let alone = |value: f64| -> [Series<'static>; 1] { [(vec![], value)] };
    out.metric(
        "kvlane_lean_ratio",
        Gauge,
        "1 while placement weighs caches as configured; less when it leans towards load, 0 by load alone.",
        alone(safety.lean),
    );
    out.metric(
        "kvlane_holdout_windows_total",
        Counter,
        "Times requests placed by cache were compared with those placed by load alone.",
        alone(safety.judged as f64),
    );
    let sides = ["cache", "load"].into_iter().zip(safety.ttft_s);
    out.metric(
        "kvlane_holdout_ttft_seconds",
        Gauge,
        "Mean time to the first token in the last comparison, by how requests were placed.",
        sides.map(|(side, mean)| (vec![("placed_by", side.to_owned())], mean)),
    );
    out.metric(
        "kvlane_peer_routers",
        Gauge,
        "Other routers whose load is known.",
        alone(router.sight.peers.count() as f64),
    );
}

/// A count of a feed's report, under which name and meaning.
type FeedCount = (&'static str, Kind, &'static str, fn(&FeedReport) -> f64);

const FEED_COUNTS: [FeedCount; 10] = [
    ("kvlane_feed_batches_total", Counter, "Batches of KV events heard.", |r| r.batches as f64),
    ("kvlane_feed_gaps_total", Counter, "Times events were missing.", |r| r.gaps as f64),
    ("kvlane_feed_restarts_total", Counter, "Times an engine started over.", |r| r.restarts as f64),
    ("kvlane_feed_replays_total", Counter, "Times the past was asked for and had.", |r| r.replays as f64),
    ("kvlane_feed_failed_replays_total", Counter, "Times it could not be had.", |r| r.failed_replays as f64),
    ("kvlane_feed_duplicates_total", Counter, "Batches that came twice.", |r| r.duplicates as f64),
    ("kvlane_feed_disconnects_total", Counter, "Times the connection broke.", |r| r.disconnects as f64),
    ("kvlane_feed_decode_errors_total", Counter, "Messages that could not be read.", |r| {
        r.decode_errors as f64
    }),
    ("kvlane_feed_orphaned_blocks_total", Counter, "Stored blocks whose parent is not known.", |r| {
        r.orphaned_blocks as f64
    }),
    ("kvlane_feed_silent", Gauge, "Whether a worker serves and says nothing of its cache.", |r| {
        f64::from(r.silent)
    }),
];

const FEED_STATES: [(FeedState, &str); 5] = [
    (FeedState::Connecting, "connecting"),
    (FeedState::Repairing, "repairing"),
    (FeedState::Live, "live"),
    (FeedState::Partial, "partial"),
    (FeedState::Refused, "refused"),
];

fn feeds(workers: &[Arc<Worker>], router: &Router, out: &mut Exposition) {
    let mut reports: Vec<(&Worker, u32, FeedReport)> = Vec::new();
    for worker in workers {
        let health = worker.feeds.lock().as_ref().map(|feeds| feeds.health()).unwrap_or_default();
        reports.extend(health.iter().map(|health| (worker.as_ref(), health.worker.dp_rank, health.report())));
    }
    let labels =
        |worker: &Worker, rank: u32| vec![("worker", worker.name.clone()), ("rank", rank.to_string())];
    let states = reports.iter().flat_map(|(worker, rank, report)| {
        FEED_STATES.map(|(state, name)| {
            let mut labels = labels(worker, *rank);
            labels.push(("state", name.to_owned()));
            (labels, f64::from(report.state == state))
        })
    });
    out.metric("kvlane_feed_state", Gauge, "1 for the state a worker's KV events are in.", states);
    for (name, kind, help, value) in FEED_COUNTS {
        out.metric(
            name,
            kind,
            help,
            reports.iter().map(|(worker, rank, report)| (labels(worker, *rank), value(report))),
        );
    }
    let buckets = reports.iter().flat_map(|(worker, rank, report)| {
        let mut sum = 0;
        let bounds = LAG_BOUNDS_MS.iter().map(|bound| (bound / 1e3).to_string()).chain(["+Inf".to_owned()]);
        let counted = bounds.zip(report.lag_ms_buckets).map(move |(bound, count)| {
            sum += count;
            (bound, sum)
        });
        counted.map(|(bound, sum)| {
            let mut labels = labels(worker, *rank);
            labels.push(("le", bound));
            (labels, sum as f64)
        })
    });
    out.histogram(
        "kvlane_feed_lag_seconds",
        "From an event's making to its being applied.",
        buckets,
        reports.iter().map(|(worker, rank, report)| {
            let count: u64 = report.lag_ms_buckets.iter().sum();
            (labels(worker, *rank), report.lag_ms_sum / 1e3, count as f64)
        }),
    );
    let events = &router.config.events;
    // Dynamo's series know no ranks.
    let mut sums: BTreeMap<u64, [u64; 3]> = BTreeMap::new();
    for (worker, _, report) in &reports {
        let counts = [report.stored_events, report.removed_events, report.cleared_events];
        let sum = sums.entry(worker.instance).or_default();
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let applied = sums.iter().flat_map(|(instance, counts)| {
        ["stored", "removed", "cleared"].into_iter().zip(counts).map(|(kind, count)| {
            let labels = vec![
                ("dynamo_namespace", events.namespace.clone()),
                ("dynamo_component", events.component.clone()),
                ("worker_id", instance.to_string()),
                ("event_type", kind.to_owned()),
                ("status", "ok".to_owned()),
            ];
            (labels, *count as f64)
        })
    });
    out.metric(
        "dynamo_component_kv_cache_events_applied",
        Counter,
        "KV events taken into the index.",
        applied,
    );
}

fn index(router: &Router, out: &mut Exposition) {
    let stats = router.index.stats();
    let alone = |value: f64| -> [Series<'static>; 1] { [(vec![], value)] };
    for (name, kind, help, value) in [
        ("kvlane_index_bytes", Gauge, "Memory the index takes.", stats.bytes as f64),
        ("kvlane_index_max_bytes", Gauge, "Memory it may take.", stats.max_bytes as f64),
        ("kvlane_index_nodes", Gauge, "Runs of blocks without a branch.", stats.nodes as f64),
        (
            "kvlane_index_distinct_blocks",
            Gauge,
            "Blocks known, however many hold them.",
            stats.distinct_blocks as f64,
        ),
        (
            "kvlane_index_predicted_blocks",
            Gauge,
            "Blocks expected of placements.",
            stats.predicted_blocks as f64,
        ),
        (
            "kvlane_index_forgotten_blocks_total",
            Counter,
            "Blocks given up to hold the memory budget.",
            stats.forgotten_blocks_total as f64,
        ),
    ] {
        out.metric(name, kind, help, alone(value));
    }
    let fleet = router.keeper.fleet();
    let name = |instance: u64| {
        let known = fleet.workers.iter().find(|worker| worker.instance == instance);
        known.map_or_else(|| instance.to_string(), |worker| worker.name.clone())
    };
    let held = stats.workers.iter().map(|worker| {
        let labels =
            vec![("worker", name(worker.worker.instance)), ("rank", worker.worker.dp_rank.to_string())];
        (labels, worker.blocks() as f64)
    });
    out.metric("kvlane_index_worker_blocks", Gauge, "Blocks a worker is known to hold.", held);
}

fn tokenizer(router: &Router, out: &mut Exposition) {
    let stats = router.preprocessor.cache_stats();
    let alone = |value: u64| -> [Series<'static>; 1] { [(vec![], value as f64)] };
    for (name, kind, help, value) in [
        (
            "dynamo_frontend_tokenizer_cache_hits_total",
            Counter,
            "Pieces of text whose tokens were known.",
            stats.hits,
        ),
        (
            "dynamo_frontend_tokenizer_cache_misses_total",
            Counter,
            "Pieces that had to be tokenized.",
            stats.misses,
        ),
        ("kvlane_tokenizer_cached_tokens_total", Counter, "Tokens that were known.", stats.cached_tokens),
        ("kvlane_tokenizer_uncached_tokens_total", Counter, "Tokens that were made.", stats.uncached_tokens),
        ("kvlane_tokenizer_cache_bytes", Gauge, "Memory of known tokens.", stats.bytes),
        ("kvlane_tokenizer_cache_max_bytes", Gauge, "Memory they may take.", stats.capacity_bytes),
        (
            "kvlane_tokenizer_waiting_requests",
            Gauge,
            "Requests waiting for a thread to be tokenized.",
            router.preprocessor.waiting() as u64,
        ),
    ] {
        out.metric(name, kind, help, alone(value));
    }
}
