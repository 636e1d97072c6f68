#!/usr/bin/env python3
"""The two boards. `python3 boards.py` writes them beside this file, `--check` says whether they are up to date.

`reference` is for whoever watches the demo: the reference deployment's panels and queries, metric by metric, so it also
works in front of Dynamo. `operator` is for whoever runs the router: why requests went where they went, and what is wrong.
"""

import json
import pathlib
import sys

sys.dont_write_bytecode = True  # One small module: nothing to gain from a folder beside it.

from panels import (
    GREEN, GREY, LIGHT_BLUE, ORANGE, RED,
    annotation, as_reference, board, coloured, on_the_right, override, row, series, stat, steps, table, target, variable,
)

HERE = pathlib.Path(__file__).parent
NAMESPACE = "dynamo-workload"

DATASOURCE = variable("datasource", "Prometheus", "datasource", "prometheus")
# By a metric that Dynamo has too: the reference board is meant for both.
NAMESPACES = variable("namespace", "Namespace", "query", "label_values(dynamo_frontend_inflight_requests, namespace)", NAMESPACE)

MODE_SWITCHES = annotation(
    "Mode switched",
    'kvlane_mode{namespace="$namespace"} unless on (pod, mode) (kvlane_mode{namespace="$namespace"} offset 15s)',
    LIGHT_BLUE,
    "mode {{mode}}",
)


# ---- The reference board -------------------------------------------------------------------------------------------

INFLIGHT = target('sum(dynamo_frontend_inflight_requests{namespace="$namespace"})', "Inflight")


def recorded(metric, quantile):
    """Lines that were recorded before, at the chosen level: rules made by `kvlane-load report`."""
    labels = f'quantile="{quantile}",concurrency="$concurrency",workload="$workload"'
    return target(f"{metric}{{{labels}}}", "{{mode}}, {{source}}")


def summary(metric, quantile):
    return f'{metric}{{quantile="{quantile}"}}'


def promised(title, text, metric, baseline, limit):
    """One p95 against its objective, the load behind it, and what was recorded."""
    targets = [target(summary(metric, "0.95"), "p95"), INFLIGHT, recorded(baseline, "0.95")]
    marks = [coloured("p95", ORANGE), on_the_right("B"), as_reference("C")]
    return series(title, text, targets, "s", height=10, limit=limit, overrides=marks)


def halves(title, text, metric, baseline):
    """Median and tail of the same thing."""
    targets = [
        target(summary(metric, "0.5"), "p50"),
        target(summary(metric, "0.95"), "p95"),
        recorded(baseline, "0.5"),
    ]
    return series(title, text, targets, "s", overrides=[coloured("p50", GREEN), coloured("p95", ORANGE), as_reference("C")])


def ratio(over, under, labels='{namespace="$namespace"}', window="1m"):
    return f"rate({over}{labels}[{window}]) / rate({under}{labels}[{window}])"


RECORDED_TEXT = (
    "Dotted: what was recorded at the level chosen above (Reference at), one line for each way of routing; "
    "the median's in panels that show one."
)
SPECULATIVE = '{namespace="$namespace"}[1m]'


def reference():
    summary_row = row(
        "",
        stat(
            "Request Rate",
            "Requests that ended, a second, over the last minute. One request is one turn of a conversation.",
            'sum(rate(dynamo_frontend_requests_total{namespace="$namespace"}[1m]))',
            "reqps",
            decimals=2,
        ),
        stat(
            "Inflight",
            "Requests being answered now, over all workers. This is the concurrency the deployment sees.",
            INFLIGHT["expr"],
        ),
        stat(
            "Queued",
            "Requests that have had no token yet: in the router, on their way, or being prefilled. A few are normal; a "
            "number that stays means that more comes in than can be done.",
            'sum(dynamo_frontend_queued_requests{namespace="$namespace"})',
        ),
        stat(
            "Output Tokens/s",
            "Tokens of answers, a second, over the last minute and all workers: the throughput.",
            'sum(rate(dynamo_frontend_output_tokens_total{namespace="$namespace"}[1m]))',
        ),
        promised(
            "TTFT p95 (SLO: 600ms)",
            "Time to the first token as the load generator's clients saw it, 95th percentile of the last minute. Red: "
            "the objective of 600 ms is missed. With round robin it is near the line or over it, because follow-up turns "
            "land where their history is not cached and are computed again; placed by cache it is well below. "
            + RECORDED_TEXT,
            "loadgen_ttft_all_seconds",
            "demo_baseline_ttft_seconds",
            0.6,
        ),
        promised(
            "TPOT p95 (SLO: 60ms)",
            "Time per token after the first, 95th percentile of the last minute. Red: the objective of 60 ms is missed. "
            "It follows batch size and decode speed, so routing moves it less than TTFT; less prefill leaves more steps "
            "to decode in. " + RECORDED_TEXT,
            "loadgen_tpot_all_seconds",
            "demo_baseline_itl_seconds",
            0.06,
        ),
        halves(
            "TTFT",
            "Median and 95th percentile. A wide gap is a tail: some requests miss the cache, or wait. " + RECORDED_TEXT,
            "loadgen_ttft_all_seconds",
            "demo_baseline_ttft_seconds",
        ),
        halves(
            "TPOT",
            "Median and 95th percentile. Close together: decoding is even. Apart: batches are crowded, or prefill "
            "interrupts them. " + RECORDED_TEXT,
            "loadgen_tpot_all_seconds",
            "demo_baseline_itl_seconds",
        ),
        series(
            "Latency",
            "Mean time of a whole request over the last minute: waiting, prefill and every token. Answers of 500 to 900 "
            "tokens from a 70B model take 15 to 45 s, depending on the load.",
            [target(
                'sum(rate(dynamo_frontend_request_duration_seconds_sum{namespace="$namespace"}[1m])) / '
                'sum(rate(dynamo_frontend_request_duration_seconds_count{namespace="$namespace"}[1m]))',
                "avg",
            )],
            "s",
        ),
        series(
            "KV Cache",
            "Share of prompt tokens that were cached where the request went, over the last minute; the most direct sign of "
            "routing that works.\n\n"
            "- near 0 %: nothing is reused. Round robin over many replicas, only first turns, or evicted before reuse\n"
            "- 30 to 50 %: some. Conversations find their worker, but caches are short or many conversations are new\n"
            "- 60 to 80 %: most follow-up turns find their history\n"
            "- above 80 %: nearly all is reused, long conversations over shared documents",
            [target(
                ratio("dynamo_frontend_cached_tokens_sum", "dynamo_frontend_input_sequence_tokens_sum"), "Cache Hit Rate"
            )],
            "percentunit",
            high=1,
            overrides=[coloured("Cache Hit Rate", GREEN)],
        ),
    )
    per_worker = row(
        "Per Worker Metrics",
        series(
            "Inflight Requests (per worker)",
            "Requests at each worker, on top of each other: the height is all of them. Round robin keeps them even. Placed "
            "by cache they differ for a while, which is as it should be; load is weighed too, so no worker is left far "
            "behind for long.",
            [target('dynamo_component_inflight_requests{namespace="$namespace"}', "{{pod}}")],
            "short",
            width=8,
            stacked=True,
        ),
        series(
            "GPU Utilization (per GPU)",
            "Share of time the GPU was busy. 40 to 80 % is usual while serving: decoding is bound by memory, not by "
            "arithmetic. Below 20 % the worker idles; above 90 % for long, it is the bottleneck.",
            [target('DCGM_FI_DEV_GPU_UTIL{exported_namespace="$namespace"}', "{{Hostname}} GPU {{gpu}}")],
            "percent",
            width=8,
            high=100,
        ),
        series(
            "Engine Queue Wait Time (per worker)",
            "How long requests waited inside the engine before they ran. Below 0.1 s it keeps up; when it rises, the batch "
            "is full. Requests that wait here were placed already: compare with Queued above.",
            [target(
                ratio("trtllm_request_queue_time_seconds_sum", "trtllm_request_queue_time_seconds_count"), "{{pod}}"
            )],
            "s",
            width=8,
        ),
    )
    conversations = row(
        "Conversations and Speculative Decoding",
        stat(
            "Active Conversations",
            "Conversations the load generator keeps going now.",
            "loadgen_active_conversations",
            width=6,
            height=9,
        ),
        series(
            "Inter-Token Latency",
            "Between two tokens of an answer, as the router saw them pass. Speculative decoding lowers it: several tokens "
            "come from one step. " + RECORDED_TEXT,
            [
                *(
                    target(
                        f"histogram_quantile({quantile}, sum by (le) "
                        '(rate(dynamo_frontend_inter_token_latency_seconds_bucket{namespace="$namespace"}[1m])))',
                        name,
                    )
                    for quantile, name in ((0.5, "p50"), (0.95, "p95"))
                ),
                recorded("demo_baseline_itl_seconds", "0.5"),
            ],
            "s",
            width=6,
            overrides=[coloured("p50", GREEN), coloured("p95", ORANGE), as_reference("C")],
        ),
        series(
            "Acceptance Rate",
            "Share of drafted tokens that the model kept. Above 60 % speculation pays well; below 30 % drafting costs more "
            "than it brings. Empty without speculative decoding.",
            [target(
                f"sum(rate(vllm:spec_decode_num_accepted_tokens_total{SPECULATIVE})) / "
                f"sum(rate(vllm:spec_decode_num_draft_tokens_total{SPECULATIVE}))",
                "accepted",
            )],
            "percentunit",
            width=6,
            high=1,
            nothing="no speculation",
        ),
        series(
            "Tokens per Step",
            "Tokens that one step of the large model yields: 1 without speculation, the accepted ones on top of it with.",
            [target(
                f"1 + sum(rate(vllm:spec_decode_num_accepted_tokens_total{SPECULATIVE})) / "
                f"sum(rate(vllm:spec_decode_num_drafts_total{SPECULATIVE}))",
                "tokens",
            )],
            "short",
            width=6,
            nothing="no speculation",
        ),
    )
    reliability = row(
        "Reliability and Utilisation",
        series(
            "Error Rate",
            "Share of requests that failed over the last minute, whoever was at fault. Anything above 1 % for long wants a "
            "look at the panel beside it.",
            # Series of errors begin with the first one: until then it is 0, and not nothing.
            [target(
                '(sum(rate(dynamo_frontend_requests_total{namespace="$namespace",status="error"}[1m])) or vector(0)) / '
                'sum(rate(dynamo_frontend_requests_total{namespace="$namespace"}[1m]))',
                "errors",
            )],
            "percentunit",
            width=6,
            overrides=[coloured("errors", RED)],
        ),
        series(
            "Errors and Timeouts",
            "Failed requests a second, by kind. `timeout`: no worker answered in time; `overload`: all were full; "
            "`internal`: a worker failed; `cancelled`: the client went away; `validation`, `not_found`: the client's.",
            [target(
                'sum by (error_type) (rate(dynamo_frontend_requests_total{namespace="$namespace",status="error"}[1m]))',
                "{{error_type}}",
            )],
            "reqps",
            width=6,
            stacked=True,
            nothing="no errors",
        ),
        series(
            "KV Cache Occupancy (per worker)",
            "Share of KV blocks that running requests use. Near 100 % the engine evicts what could have been reused, and "
            "starts requests over.",
            [target('vllm:kv_cache_usage_perc{namespace="$namespace"}', "{{pod}}")],
            "percentunit",
            width=6,
            high=1,
        ),
        series(
            "GPU Memory (per GPU)",
            "Share of the card's memory in use. Engines take most of it at the start and keep it: a flat line is normal, one "
            "that falls is a restart.",
            [target(
                'DCGM_FI_DEV_FB_USED{exported_namespace="$namespace"} / '
                '(DCGM_FI_DEV_FB_USED{exported_namespace="$namespace"} + DCGM_FI_DEV_FB_FREE{exported_namespace="$namespace"})',
                "{{Hostname}} GPU {{gpu}}",
            )],
            "percentunit",
            width=6,
            high=1,
        ),
    )
    levels = "label_values(demo_baseline_ttft_seconds, concurrency)"
    workloads = "label_values(demo_baseline_ttft_seconds, workload)"
    return board(
        "gtc-demo",
        "Kvlane: KV-aware routing",
        "Latency, throughput, cache hits and workers of a deployment behind a KV-aware router, live.",
        [
            DATASOURCE,
            NAMESPACES,
            variable("concurrency", "Reference at", "query", levels, "60"),
            variable("workload", "Reference", "query", workloads, "recorded"),
        ],
        [MODE_SWITCHES],
        summary_row,
        per_worker,
        conversations,
        reliability,
    )


# ---- The operator's board ------------------------------------------------------------------------------------------

ROUTERS = variable(
    "router", "Router", "query", 'label_values(kvlane_build_info{namespace="$namespace"}, pod)', several=True
)
WINDOW = "[$__rate_interval]"


def of(metric, *labels):
    """A metric of the chosen routers."""
    return metric + "{" + ",".join(('namespace="$namespace"', 'pod=~"$router"', *labels)) + "}"


def at_workers(metric, *labels):
    """A metric of the engines themselves."""
    return metric + "{" + ",".join(('namespace="$namespace"', *labels)) + "}"


def rate(selected, window=WINDOW):
    return f"rate({selected}{window})"


def summed(expr, *by):
    return f"sum by ({', '.join(by)}) ({expr})" if by else f"sum({expr})"


def mean(metric, *by, pick=of):
    return f"{summed(rate(pick(metric + '_sum')), *by)} / {summed(rate(pick(metric + '_count')), *by)}"


def quantile(share, metric, *by, pick=of):
    return f"histogram_quantile({share}, {summed(rate(pick(metric + '_bucket')), 'le', *by)})"


def quantiles(metric, *shares, prefix=""):
    return [target(quantile(share, metric), f"{prefix}p{share * 100:g}") for share in shares]


def health():
    yes_no = [{"type": "value", "options": {
        "0": {"text": "no", "color": RED, "index": 0},
        "1": {"text": "yes", "color": GREEN, "index": 1},
    }}]
    ready = of("kvlane_worker_state", 'state="ready"')
    return row(
        "",
        stat("Ready", "Whether /ready says yes: a worker is ready and its events have caught up. The worst of the routers.",
             f"min({of('kvlane_ready')})", width=3, graph="none", mappings=yes_no, colours=steps((RED, None), (GREEN, 1))),
        stat("Mode", "How requests are placed. It can be changed while the router runs (/admin/mode).",
             of("kvlane_mode"), width=3, graph="none", legend="{{mode}}", words="name"),
        stat("Version", "What runs. Two names: a rollout is not over.",
             f"count by (version) ({of('kvlane_build_info')})", width=3, graph="none", legend="{{version}}", words="name"),
        stat("Workers Ready", "Workers that take requests, as the router that sees the fewest sees them.",
             f"min({summed(ready, 'pod')})", width=3, colours=steps((RED, None), (GREEN, 1))),
        stat("Breakers Open", "Workers that are out because their requests failed.",
             f"{summed('ceil(' + of('kvlane_breaker_open') + ')')}", width=3,
             colours=steps((GREEN, None), (ORANGE, 1))),
        stat("Index Suspect", "Workers that report less cached than the index says. /admin/workers has the cause.",
             f"count({of('kvlane_overlap_suspect')}) or vector(0)", width=3, colours=steps((GREEN, None), (ORANGE, 1))),
        stat("Lean", "100 %: placement weighs caches as configured. Less: the safety net found that it did not pay.",
             f"min({of('kvlane_lean_ratio')})", "percentunit", width=3, colours=steps((ORANGE, None), (GREEN, 1))),
        stat("Alerts", "Alerts of deploy/prometheus/rules/alerts.yml that fire now.",
             'count(ALERTS{alertname=~"Kvlane.*",alertstate="firing"}) or vector(0)', width=3,
             colours=steps((GREEN, None), (RED, 1))),
    )


def decisions():
    by_mode = f"{rate(of('kvlane_placements_total'))} * on (namespace, pod) group_left (mode) {of('kvlane_mode')}"
    share = summed(rate(of("kvlane_placements_total")), "worker")
    return row(
        "Decisions",
        series("Decisions by Mode", "Requests placed, a second, by the mode that placed them. Failovers count again.",
               [target(summed(by_mode, "mode"), "{{mode}}")], "reqps", width=8, stacked=True),
        series("Placements by Worker",
               "Requests placed on each worker, a second. Uneven for minutes while a document is popular is normal; one worker "
               "without any is not: see its state and breaker.",
               [target(share, "{{worker}}")], "reqps", width=8, stacked=True),
        series("Share of the Busiest Worker",
               "How much more than an even share the busiest worker gets: 1 is even, the number of workers is all of it.",
               [target(f"max({share}) / avg({share})", "busiest / mean")], "short", width=8, low=1),
        series("Time Before Sending, by Phase",
               "What a request goes through in the router, mean of each phase, on top of each other. `tokenize` is the largest "
               "for new text and small for text seen before; `place` is the choice itself, without any waiting for a worker.",
               [target(mean("kvlane_phase_seconds", "phase"), "{{phase}}")], "s", width=8, stacked=True),
        series("Placement Overhead",
               "From the read body to the chosen worker, tokenizing included. Milliseconds here are added to every first token.",
               quantiles("dynamo_router_overhead_total_ms", 0.5, 0.99)
               + [target(quantile(0.99, "dynamo_router_overhead_indexer_find_matches_ms"), "index p99"),
                  target(quantile(0.99, "dynamo_router_overhead_scheduling_ms"), "choice p99")],
               "ms", width=8),
        series("Overlap at the Chosen Worker",
               "Share of a prompt's blocks that the chosen worker was known to hold. A falling mean with the same traffic: caches "
               "are too small, events are missing, or load drives requests away from their cache.",
               [target(mean("dynamo_component_router_kv_hit_rate"), "mean"),
                target(quantile(0.1, "dynamo_component_router_kv_hit_rate"), "p10")],
               "percentunit", width=8, high=1),
    )


def audit():
    said, had = "kvlane_overlap_predicted_tokens_total", "kvlane_overlap_reported_tokens_total"
    return row(
        "Audit: What the Index Said Against What Engines Reported",
        series("Promised and Cached Tokens",
               "Prompt tokens a second that the index said were cached, and that engines then reported as cached. Reported "
               "below promised: the index is wrong. Above: engines hold more than their events say.",
               [target(summed(rate(of(said))), "promised"), target(summed(rate(of(had))), "reported")],
               "short", width=8, overrides=[coloured("promised", LIGHT_BLUE), coloured("reported", GREEN)]),
        series("Kept Promises, by Worker",
               "Reported over promised. 100 % or a little more is right. A worker below 80 % is believed less and asked anew.",
               [target(f"{summed(rate(of(had)), 'worker')} / {summed(rate(of(said)), 'worker')}", "{{worker}}")],
               "percentunit", width=8),
        series("Trust, by Worker",
               "How much of what the index says of a worker is believed. `suspect` lines name the likely cause: template, "
               "block_size, no_caching, events or salt.",
               [target(of("kvlane_overlap_trust_ratio"), "{{worker}}"),
                target(of("kvlane_overlap_suspect"), "suspect {{worker}}: {{cause}}")],
               "percentunit", width=8, high=1, overrides=[override(
                   "byFrameRefID", "B", color={"mode": "fixed", "fixedColor": RED}, custom__lineWidth=1)]),
        series("Broken Promises",
               "Answers with more than a block less cached than was said, answers without a word about it (vLLM needs "
               "--enable-prompt-tokens-details), and indexes built anew; a second.",
               [target(summed(rate(of("kvlane_overlap_disagreements_total"))), "less than said"),
                target(summed(rate(of("kvlane_overlap_unreported_total"))), "nothing said"),
                target(summed(rate(of("kvlane_overlap_resyncs_total"))), "built anew")],
               "reqps", width=24, height=7),
    )


def waiting():
    placed = summed('dynamo_component_inflight_requests{namespace="$namespace",worker!=""}', "worker")
    return row(
        "Slots and Waiting Requests",
        series("Requests Against Slots",
               "Requests placed on a worker over what it runs at a time. Above 100 %, some wait there. Workers whose slots are "
               "not known are missing: they are learnt once an engine is seen full.",
               [target(f"{placed} / max by (worker) ({of('kvlane_worker_slots')})", "{{worker}}")],
               "percentunit", width=8, limit=1, nothing="slots not known"),
        series("Waiting in the Router",
               "Requests for which no worker has room, by priority. They are placed as soon as one has.",
               [target(summed(of("kvlane_queue_requests"), "priority"), "{{priority}}")],
               "short", width=8, stacked=True),
        series("Wait in the Router",
               "How long requests waited, of those that had to; and the oldest that still does.",
               [target(quantile(0.5, "kvlane_queue_wait_seconds"), "p50"),
                target(quantile(0.95, "kvlane_queue_wait_seconds"), "p95"),
                target(f"max({of('kvlane_queue_oldest_seconds')})", "oldest now")],
               "s", width=8, nothing="nobody waited"),
        series("Running and Waiting at Engines",
               "What engines say of themselves. Waiting at one while others have none: look at its cache, or its speed.",
               [target(of("kvlane_engine_running_requests"), "{{worker}} runs"),
                target(of("kvlane_engine_waiting_requests"), "{{worker}} waits")],
               "short", width=8, overrides=[override(
                   "byFrameRefID", "B", custom__lineStyle={"fill": "dash", "dash": [10, 10]})]),
        series("Refused",
               "Requests refused a second: too many waited (full), or one had waited too long (timeout).",
               [target(summed(rate(of("kvlane_queue_refused_total")), "reason"), "{{reason}}")],
               "reqps", width=8, stacked=True, nothing="nobody was refused"),
        series("Requests of Others",
               "Requests engines have that no router placed there: clients that go past the router, or routers that cannot "
               "hear each other.",
               [target(of("kvlane_worker_other_requests"), "{{worker}}")], "short", width=8),
    )


def events():
    troubles = {
        "gaps": "kvlane_feed_gaps_total",
        "restarts": "kvlane_feed_restarts_total",
        "replays": "kvlane_feed_replays_total",
        "failed replays": "kvlane_feed_failed_replays_total",
        "disconnects": "kvlane_feed_disconnects_total",
        "duplicates": "kvlane_feed_duplicates_total",
        "unreadable": "kvlane_feed_decode_errors_total",
        "orphaned blocks": "kvlane_feed_orphaned_blocks_total",
    }
    return row(
        "KV Events",
        table("Feeds Now",
              "Where each worker's events stand. live: in order. partial: in order, but not all of the past is known. repairing: "
              "events were lost and what the worker holds is asked for. connecting: its publisher cannot be reached. refused: "
              "given up, see the log.",
              f"{of('kvlane_feed_state')} == 1", {"worker": "Worker", "rank": "Rank", "state": "State", "pod": "Router"}, width=8),
        series("Feeds by State", "How many feeds are in each state. All live is right.",
               [target(summed(of("kvlane_feed_state"), "state"), "{{state}}")], "short", width=8, stacked=True),
        series("Silent Workers",
               "1: the worker serves and says nothing of its cache. Is publishing switched on, and to the address the router "
               "listens to?",
               [target(of("kvlane_feed_silent"), "{{worker}} rank {{rank}}")], "short", width=8, high=1),
        series("Event Lag, p99 by Worker",
               "From an event's making to its being in the index, by the clocks of both machines. Below 50 ms is usual. Above a "
               "second, requests are placed by what was true a second ago.",
               [target(quantile(0.99, "kvlane_feed_lag_seconds", "worker"), "{{worker}}")], "s", width=8),
        series("Events Applied",
               "KV events taken into the index, a second. More removed than stored for long: caches are too small for the traffic.",
               [target(summed(rate(of("dynamo_component_kv_cache_events_applied")), "event_type"), "{{event_type}}")],
               "short", width=8),
        series("What Went Wrong",
               "How often in the last five minutes. A gap followed by a replay is mended; a failed replay leaves a feed partial; "
               "unreadable messages come from an engine version not known here.",
               [target(f"sum(increase({of(metric)}[5m]))", name) for name, metric in troubles.items()],
               "short", width=8),
    )


def index():
    return row(
        "Index",
        series("Memory Against Budget",
               "At the budget the least recently used blocks are given up: overlap then reads low, never high (--index-mib).",
               [target(of("kvlane_index_bytes"), "{{pod}}"),
                target(f"max({of('kvlane_index_max_bytes')})", "budget")],
               "bytes", width=8, overrides=[override(
                   "byName", "budget", color={"mode": "fixed", "fixedColor": RED}, custom__fillOpacity=0,
                   custom__lineStyle={"fill": "dash", "dash": [10, 10]})]),
        series("Blocks by Worker", "Blocks each worker is known to hold.",
               [target(of("kvlane_index_worker_blocks"), "{{worker}} rank {{rank}}")], "short", width=8),
        series("Blocks and Nodes",
               "Distinct blocks, however many hold them; runs of them without a branch (nodes); blocks expected of placements "
               "that no event has confirmed (predicted), which workers without events live on; and those given up for the "
               "budget, a second.",
               [target(summed(of("kvlane_index_distinct_blocks")), "distinct"),
                target(summed(of("kvlane_index_nodes")), "nodes"),
                target(summed(of("kvlane_index_predicted_blocks")), "predicted"),
                target(summed(rate(of("kvlane_index_forgotten_blocks_total"))), "given up a second")],
               "short", width=8),
    )


def process():
    return row(
        "Process",
        series("Router CPU", "Cores in use. It grows with requests and with streamed chunks, not with prompts that are known.",
               [target(rate(of("process_cpu_seconds_total")), "{{pod}}")], "short", width=8),
        series("Router Memory", "Resident. The index, the tokenizer's cache and open streams are most of it; each has a bound.",
               [target(of("process_resident_memory_bytes"), "{{pod}}")], "bytes", width=8),
        series("Open Files", "Connections of clients and to workers. Near the limit new ones are refused (ulimit -n).",
               [target(of("process_open_fds"), "{{pod}}"), target(f"min({of('process_max_fds')})", "limit")],
               "short", width=8),
    )


def failures():
    return row(
        "Failures",
        series("Failovers", "Requests sent to another worker, a second, by what the one before did. Clients did not notice these.",
               [target(summed(rate(of("kvlane_retries_total")), "reason"), "{{reason}}")],
               "reqps", width=8, stacked=True, nothing="none"),
        series("Failures by Worker", "Requests a worker failed to answer, a second, by how.",
               [target(summed(rate(of("kvlane_worker_failures_total")), "worker", "reason"), "{{worker}}: {{reason}}")],
               "reqps", width=8, nothing="none"),
        series("Breakers", "1: the worker is out. 0.5: it is tried with one request. 0: it is in.",
               [target(of("kvlane_breaker_open"), "{{worker}}")], "short", width=8, high=1),
        series("Breakers Opened", "How often in the last five minutes. The same worker again and again: it starts, and then fails.",
               [target(f"{summed('increase(' + of('kvlane_breaker_opened_total') + '[5m])', 'worker')}", "{{worker}}")],
               "short", width=8),
        series("Worker States", "joining: has not told its model yet. draining: takes nothing new. down: did not answer three looks.",
               [target(summed(of("kvlane_worker_state"), "state"), "{{state}}")], "short", width=8, stacked=True),
        series("Errors to Clients",
               "Requests that failed, a second, by kind; clients that went away; and parts of streams that were not understood.",
               [target(summed(rate(of("dynamo_frontend_requests_total", 'status="error"')), "error_type"), "{{error_type}}"),
                target(f"sum(delta({of('dynamo_frontend_disconnected_clients')}[1m])) / 60", "clients gone"),
                target(summed(rate(of("kvlane_malformed_frames_total"))), "not understood")],
               "reqps", width=8),
    )


def engines():
    ttft = quantile(0.95, "vllm:time_to_first_token_seconds", "pod", pick=at_workers)
    return row(
        "Engines Side by Side",
        series("TTFT p95, by Worker", "By the engines' own clocks (vLLM's metric): without the router and the network.",
               [target(ttft, "{{pod}}")], "s", width=8),
        series("TTFT Skew",
               "The slowest worker's p95 over the fastest's. 1 is even; above 2 for long, one of them is overloaded, cold or ill.",
               [target(f"max({ttft}) / min({ttft})", "slowest / fastest")], "short", width=8, low=1),
        series("Between Tokens p95, by Worker", "By the engines' own clocks. One slower than the others: a larger batch, or a slower GPU.",
               [target(quantile(0.95, "vllm:inter_token_latency_seconds", "pod", pick=at_workers), "{{pod}}")], "s", width=8),
        series("KV Cache in Use", "Share of KV blocks that running requests use, as engines tell the router.",
               [target(of("kvlane_engine_kv_usage_ratio"), "{{worker}}")], "percentunit", width=8, high=1),
        series("Prefill Ahead, by Worker",
               "Prompt tokens placed on a worker that it has yet to compute, on top of each other.",
               [target(of("dynamo_frontend_worker_active_prefill_tokens"), "worker {{worker_id}} rank {{dp_rank}}")],
               "short", width=8, stacked=True),
        series("Preemptions",
               "Requests an engine sent back to wait for want of blocks, in the last five minutes. Each computes its prompt again.",
               [target(f"{summed('increase(' + at_workers('vllm:num_preemptions_total') + '[5m])', 'pod')}", "{{pod}}")],
               "short", width=8),
    )


def tokenizer():
    known = summed(rate(of("kvlane_tokenizer_cached_tokens_total")))
    made = summed(rate(of("kvlane_tokenizer_uncached_tokens_total")))
    hits, misses = (summed(rate(of(f"dynamo_frontend_tokenizer_cache_{kind}_total"))) for kind in ("hits", "misses"))
    return row(
        "Tokenizer",
        series("Known Tokens", "Share of tokens, and of pieces of text, whose tokens were known. Follow-up turns repeat nearly all.",
               [target(f"{known} / ({known} + {made})", "tokens"), target(f"{hits} / ({hits} + {misses})", "pieces")],
               "percentunit", width=8, high=1),
        series("Cache Against Budget", "Memory of known tokens, and what it may be.",
               [target(of("kvlane_tokenizer_cache_bytes"), "{{pod}}"),
                target(f"max({of('kvlane_tokenizer_cache_max_bytes')})", "budget")],
               "bytes", width=8, overrides=[override(
                   "byName", "budget", color={"mode": "fixed", "fixedColor": RED}, custom__fillOpacity=0,
                   custom__lineStyle={"fill": "dash", "dash": [10, 10]})]),
        series("Tokenizing",
               "Time a prompt takes; and requests that wait for a thread to do it, on the right.",
               [*quantiles("dynamo_frontend_tokenize_seconds", 0.5, 0.99),
                target(summed(of("kvlane_tokenizer_waiting_requests")), "waiting")],
               "s", width=8, overrides=[on_the_right("C", GREY)]),
        collapsed=True,
    )


def others():
    return row(
        "Several Routers and the Safety Net",
        series("Peer Routers",
               "Other routers whose load is heard over NATS, for each router. One less than there are routers is right; 0 with "
               "several: NATS is down or not configured, and each goes by the engines' own counts.",
               [target(of("kvlane_peer_routers"), "{{pod}}")], "short", width=8),
        series("Held-Out Requests",
               "Mean time to the first token in the last comparison: placed by cache, and by load alone (--holdout). Cache above "
               "load is when placement leans.",
               [target(f"{of('kvlane_holdout_ttft_seconds')} > 0", "by {{placed_by}}")],
               "s", width=8, nothing="no holdout"),
        series("Lean Over Time",
               "100 %: caches weigh as configured. Falls when requests placed by cache come out slower, and rises again; "
               "comparisons in the last five minutes on the right.",
               [target(of("kvlane_lean_ratio"), "{{pod}}"),
                target(f"sum(increase({of('kvlane_holdout_windows_total')}[5m]))", "comparisons")],
               "percentunit", width=8, high=1, overrides=[on_the_right("B", GREY), override("byFrameRefID", "B", max=None)]),
        collapsed=True,
    )


def operator():
    alerts = annotation(
        "Critical alerts", 'ALERTS{alertname=~"Kvlane.*",alertstate="firing",severity="critical"}', RED, "{{alertname}}"
    )
    return board(
        "kvlane-operator",
        "Kvlane: operator",
        "Why requests went where they went, whether the index is right, and what is wrong.",
        [DATASOURCE, NAMESPACES, ROUTERS],
        [MODE_SWITCHES, alerts],
        health(),
        decisions(),
        audit(),
        waiting(),
        events(),
        index(),
        process(),
        failures(),
        engines(),
        tokenizer(),
        others(),
    )


BOARDS = {"reference.json": reference, "operator.json": operator}


def written(made):
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def main(arguments):
    stale = []
    for name, make in BOARDS.items():
        path, text = HERE / name, written(make())
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    if stale:
        sys.exit(f"{', '.join(stale)}: not what boards.py makes; run python3 {pathlib.Path(__file__).name}")


if __name__ == "__main__":
    main(sys.argv[1:])
