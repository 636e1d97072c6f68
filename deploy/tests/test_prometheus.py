"""The scrape configuration, rules and alerts; and every query of rules and boards against a real Prometheus that scrapes a
demo and a deployment in trouble. PROMETHEUS_BIN and KVLANE_BIN say where the programs are."""

import os
import re
import subprocess
import sys
import time

import pytest
import yaml

from observability import KVLANE_BIN, PROMETHEUS, TROUBLED, WELL, Stack, board, expressions, promtool, substituted

# How long everything may take to have data: a minute's rates need two scrapes, a silent worker half a minute.
PATIENCE_S = 100

# Queries of the boards that have nothing to show in a demo that is well, and what they need. They must have data from the
# deployment in trouble instead.
NEEDS_TROUBLE = {
    "gtc-demo: Acceptance Rate A": "engines that speculate",
    "gtc-demo: Tokens per Step A": "engines that speculate",
    "gtc-demo: Errors and Timeouts A": "failed requests",
    "kvlane-operator: Trust, by Worker B": "an engine that reports less cached than its events say",
    "kvlane-operator: Requests Against Slots A": "workers whose slots are known",
    "kvlane-operator: Wait in the Router A": "requests that waited",
    "kvlane-operator: Wait in the Router B": "requests that waited",
    "kvlane-operator: Refused A": "requests that were refused",
    "kvlane-operator: Failovers A": "a worker that fails",
    "kvlane-operator: Failures by Worker A": "a worker that fails",
    "kvlane-operator: Errors to Clients A": "failed requests",
    "kvlane-operator: Held-Out Requests A": "a holdout",
}
# Those that have none in either, and why. They are parsed (test_grafana.py) and no more.
NEEDS_MORE = {
    "kvlane-operator: Critical alerts": "a critical alert that fires, which takes longer than a test should",
}
# Rules that need trouble, likewise.
RULES_NEED_TROUBLE = {"kvlane:worker_occupancy:ratio": "workers whose slots are known"}
# What the deployment in trouble must raise, at least as pending; how long each takes to fire is promtool's to check.
RAISED = {
    "KvlaneBreakerOpen": {"worker": "failing"},
    "KvlaneFeedBroken": {"worker": "unheard"},
    "KvlaneFeedSilent": {"worker": "unheard"},
    "KvlaneIndexSuspect": {"worker": "liar", "cause": "no_caching"},
    "KvlaneQueueRefuses": {"reason": "full"},
}


def rules(name):
    groups = yaml.safe_load((PROMETHEUS / "rules" / name).read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


ALERTS = {rule["alert"]: rule for rule in rules("alerts.yml")}


# ---- Without a Prometheus --------------------------------------------------------------------------------------------


def test_the_configuration_is_one():
    said = promtool("check", "config", "prometheus.yml")
    assert "3 rule files found" in said


def test_rules_are_some():
    for name in ("recording.yml", "alerts.yml", "reference-lines.yml"):
        assert f"{len(rules(name))} rules found" in promtool("check", "rules", f"rules/{name}")


@pytest.mark.parametrize("name", ["alerts_test.yml", "slo_test.yml", "boards_test.yml"])
def test_rules_do_what_they_say(name):
    assert "SUCCESS" in promtool("test", "rules", f"tests/{name}")


def test_every_alert_is_tested_both_ways():
    tests = []
    for name in ("alerts_test.yml", "slo_test.yml"):
        tests += yaml.safe_load((PROMETHEUS / "tests" / name).read_text(encoding="utf-8"))["tests"]
    fires, silent = set(), set()
    for test in tests:
        for each in test.get("alert_rule_test", []):
            (fires if each.get("exp_alerts") else silent).add(each["alertname"])
        for each in test.get("promql_expr_test", []):
            for name in re.findall(r"Kvlane\w+", each["expr"]):
                (fires if each["exp_samples"] else silent).add(name)
    assert fires == set(ALERTS) and silent == set(ALERTS)


def test_every_alert_says_what_to_do():
    readme = (PROMETHEUS / "README.md").read_text(encoding="utf-8")
    for name, alert in ALERTS.items():
        assert alert["labels"]["severity"] in ("critical", "warning", "info"), name
        assert alert["for"], name
        assert set(alert["annotations"]) == {"summary", "description", "runbook"}, name
        assert alert["annotations"]["runbook"] == f"deploy/prometheus/README.md#{name.lower()}"
        assert f"### {name}\n" in readme, name
    assert set(re.findall(r"^### (Kvlane\w+)$", readme, re.MULTILINE)) == set(ALERTS)


def test_reference_lines_are_what_the_tool_makes():
    environment = {**os.environ, "KVLANE_BIN": str(KVLANE_BIN)}
    command = [sys.executable, PROMETHEUS / "reference_lines.py", "--check"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


# ---- With one --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    made = Stack(tmp_path_factory.mktemp("stack"))
    yield made
    made.stop()


def all_have_data(stack, asked):
    """Asks until everything has data; what still has none in the end is told, with its query."""
    end = time.monotonic() + PATIENCE_S
    missing = dict(asked)
    while missing and time.monotonic() < end:
        missing = {where: expr for where, expr in missing.items() if not stack.prometheus.has_data(expr)}
        if missing:
            time.sleep(2)
    assert not missing, "no data:\n" + "\n".join(f"{where}: {expr}" for where, expr in missing.items())


def board_queries():
    found = [each for name in ("reference.json", "operator.json") for each in expressions(board(name))]
    assert len(dict(found)) == len(found)
    return dict(found)


def test_everything_is_scraped(stack):
    def up():
        targets = stack.prometheus.ask("targets")["activeTargets"]
        return len(targets) == 9 and all(target["health"] == "up" for target in targets)

    stack.processes.until("nine targets", up, 30)


def test_labels_are_those_boards_ask_for(stack):
    prometheus = stack.prometheus
    stack.processes.until("series", lambda: prometheus.now("DCGM_FI_DEV_GPU_UTIL and on () loadgen_active_conversations"), 30)

    def labels(expr, *names):
        return {tuple(one["metric"].get(name) for name in names) for one in prometheus.now(expr)}

    # A target's own namespace and pod, or the reference's and the address.
    router = f"127.0.0.1:{stack.demo.router}"
    assert labels("kvlane_build_info", "namespace", "pod") == {(WELL, router), (TROUBLED, "troubled-router")}
    workers = {(WELL, f"worker-{n}") for n in range(3)} | {(TROUBLED, f"engine-{n}") for n in range(3)}
    assert labels("vllm:num_requests_running", "namespace", "pod") == workers
    # GPU metrics keep their own labels under other names.
    gpus = {(WELL, f"worker-{n}", f"worker-{n}") for n in range(3)}
    seen = labels(f'DCGM_FI_DEV_GPU_UTIL{{namespace="{WELL}"}}', "exported_namespace", "exported_pod", "Hostname")
    assert seen == gpus
    # Each worker's requests once, under the worker's name, though the router and the worker both count them.
    names = {(f"127.0.0.1:{stack.demo.workers + n}",) for n in range(3)}
    counted = f'dynamo_component_inflight_requests{{namespace="{WELL}"}}'
    assert labels(counted, "pod") == names and len(prometheus.now(counted)) == 3


def test_every_query_of_the_boards_has_data(stack):
    queries = board_queries()
    tables = [*NEEDS_TROUBLE, *NEEDS_MORE]
    assert set(tables) <= set(queries), "a table names a query that is gone"
    well = {where: substituted(expr) for where, expr in queries.items() if where not in tables}
    troubled = {where: substituted(queries[where], TROUBLED) for where in NEEDS_TROUBLE}
    all_have_data(stack, well | troubled)
    # The tables do not grow old: what has data after all is taken out.
    needless = [where for where in tables if stack.prometheus.has_data(substituted(queries[where]))]
    assert not needless, f"has data in a demo that is well: {needless}"


def test_every_rule_has_data(stack):
    recorded = {rule["record"]: f'{rule["record"]}{{namespace="{WELL}"}}' for rule in rules("recording.yml")}
    recorded |= {name: f'{name}{{namespace="{TROUBLED}"}}' for name in RULES_NEED_TROUBLE}
    recorded |= {rule["record"]: rule["record"] for rule in rules("reference-lines.yml")}
    all_have_data(stack, recorded)
    failing = [rule for group in stack.prometheus.ask("rules")["groups"] for rule in group["rules"] if rule["health"] != "ok"]
    assert not failing


def test_alerts_ask_for_metrics_that_exist(stack):
    """An alert has no data as long as all is well, so a wrong name would never be seen."""
    words = {"and", "or", "on", "by", "unless", "group_left", "ignoring", "le"}
    there = stack.prometheus.names()
    for name, alert in ALERTS.items():
        bare = re.sub(r"\{[^}]*\}|\b(by|on)\s*\([^)]*\)|\[[^\]]*\]", " ", alert["expr"])
        asked = set(re.findall(r"\b[a-zA-Z_][\w:]*\b(?!\s*\()", bare)) - words
        assert asked and asked <= there, f"{name}: {asked - there}"


def test_alerts_tell_trouble_from_a_deployment_that_is_well(stack):
    def raised():
        return {
            alert["labels"]["alertname"]: alert
            for alert in stack.prometheus.ask("alerts")["alerts"]
            if alert["labels"].get("namespace") == TROUBLED
        }

    stack.processes.until(f"alerts {set(RAISED)}", lambda: set(RAISED) <= set(raised()), PATIENCE_S)
    for name, labels in RAISED.items():
        alert = raised()[name]
        assert labels.items() <= alert["labels"].items(), alert
        told = " ".join(alert["annotations"].values())
        # A label that is not there leaves a hole, a function that fails an error.
        assert "error" not in told and "  " not in told and "()" not in told, told
    firing = [alert for alert in stack.prometheus.ask("alerts")["alerts"] if alert["state"] == "firing"]
    assert not [alert for alert in firing if alert["labels"].get("namespace") != TROUBLED], firing
