"""The boards: made of their source, whole, and asking what they should. That every query has data is in test_prometheus.py."""

import itertools
import json
import re
import subprocess
import sys

import pytest
import yaml

from observability import GRAFANA, PROMETHEUS, WELL, board, expressions, panels, promtool, substituted

BOARDS = ["reference.json", "operator.json"]

# The reference's own panels, in their order: title, unit, queries with their legends.
REFERENCE = [
    ("Request Rate", "reqps", ['sum(rate(dynamo_frontend_requests_total{namespace="dynamo-workload"}[1m]))']),
    ("Inflight", "short", ['sum(dynamo_frontend_inflight_requests{namespace="dynamo-workload"})']),
    ("Queued", "short", ['sum(dynamo_frontend_queued_requests{namespace="dynamo-workload"})']),
    ("Output Tokens/s", "short", ['sum(rate(dynamo_frontend_output_tokens_total{namespace="dynamo-workload"}[1m]))']),
    ("TTFT p95 (SLO: 600ms)", "s", [
        'loadgen_ttft_all_seconds{quantile="0.95"}',
        'sum(dynamo_frontend_inflight_requests{namespace="dynamo-workload"})',
    ]),
    ("TPOT p95 (SLO: 60ms)", "s", [
        'loadgen_tpot_all_seconds{quantile="0.95"}',
        'sum(dynamo_frontend_inflight_requests{namespace="dynamo-workload"})',
    ]),
    ("TTFT", "s", ['loadgen_ttft_all_seconds{quantile="0.5"}', 'loadgen_ttft_all_seconds{quantile="0.95"}']),
    ("TPOT", "s", ['loadgen_tpot_all_seconds{quantile="0.5"}', 'loadgen_tpot_all_seconds{quantile="0.95"}']),
    ("Latency", "s", [
        'sum(rate(dynamo_frontend_request_duration_seconds_sum{namespace="dynamo-workload"}[1m])) / '
        'sum(rate(dynamo_frontend_request_duration_seconds_count{namespace="dynamo-workload"}[1m]))',
    ]),
    ("KV Cache", "percentunit", [
        'rate(dynamo_frontend_cached_tokens_sum{namespace="dynamo-workload"}[1m]) / '
        'rate(dynamo_frontend_input_sequence_tokens_sum{namespace="dynamo-workload"}[1m])',
    ]),
    ("Inflight Requests (per worker)", "short", ['dynamo_component_inflight_requests{namespace="dynamo-workload"}']),
    ("GPU Utilization (per GPU)", "percent", ['DCGM_FI_DEV_GPU_UTIL{exported_namespace="dynamo-workload"}']),
    ("Engine Queue Wait Time (per worker)", "s", [
        'rate(trtllm_request_queue_time_seconds_sum{namespace="dynamo-workload"}[1m]) / '
        'rate(trtllm_request_queue_time_seconds_count{namespace="dynamo-workload"}[1m])',
    ]),
]


def titled(title, made=None):
    [found] = [one for one in panels(made or board("reference.json")) if one["title"] == title]
    return found


def properties(panel, letter):
    """What is overridden for one query's curves."""
    matching = [one["properties"] for one in panel["fieldConfig"]["overrides"]
                if one["matcher"] == {"id": "byFrameRefID", "options": letter}]
    return {each["id"]: each.get("value") for each in itertools.chain(*matching)}


def colour(panel, name):
    [found] = [one for one in panel["fieldConfig"]["overrides"] if one["matcher"] == {"id": "byName", "options": name}]
    return found["properties"][0]["value"]["fixedColor"]


def test_boards_are_what_their_source_makes():
    command = [sys.executable, GRAFANA / "boards.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_can_be_imported_anywhere(name):
    made = board(name)
    assert made["id"] is None and made["uid"] and made["version"] >= 1 and made["schemaVersion"] >= 36
    assert made["refresh"] == "5s" and made["time"] == {"from": "now-30m", "to": "now"}
    variables = {one["name"]: one for one in made["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource" and variables["datasource"]["query"] == "prometheus"
    assert variables["namespace"]["current"]["value"] == WELL
    text = json.dumps(made)
    used = set(re.findall(r"\$\{?(\w+)\}?", text)) - {"__rate_interval", "__all"}
    assert used <= set(variables), f"variables nobody declared: {used - set(variables)}"
    sources = re.findall(r'"uid": "([^"]*)"', text)
    assert set(sources) == {"${datasource}", made["uid"]}


@pytest.mark.parametrize("name", BOARDS)
def test_every_panel_says_what_it_is(name):
    made = board(name)
    for one in panels(made):
        where = f"{name}: {one['title']}"
        assert len(one["description"]) > 20, where
        assert one["fieldConfig"]["defaults"]["unit"], where
        assert one["datasource"]["uid"] == "${datasource}", where
        assert one["targets"] and all(each["datasource"] == one["datasource"] for each in one["targets"]), where
        letters = [each["refId"] for each in one["targets"]]
        assert len(set(letters)) == len(letters), where
        if one["type"] == "timeseries":
            assert all(each["legendFormat"] for each in one["targets"]), where
    titles = [one["title"] for one in panels(made)]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("name", BOARDS)
def test_panels_have_places_of_their_own(name):
    made = board(name)
    rows = [one for one in made["panels"] if one["type"] == "row"]
    numbers = [one["id"] for one in [*rows, *panels(made)]]
    assert len(set(numbers)) == len(numbers)
    # Panels of a folded row have places too, under it; they may lie over what comes after the row while it is folded.
    folded = [row["panels"] for row in rows if row["collapsed"]]
    assert all(not row["panels"] for row in rows if not row["collapsed"])
    for group in [made["panels"], *folded]:
        taken = set()
        for one in group:
            place = one["gridPos"]
            assert place["x"] + place["w"] <= 24, one["title"]
            columns = range(place["x"], place["x"] + place["w"])
            cells = set(itertools.product(columns, range(place["y"], place["y"] + place["h"])))
            assert not taken & cells, one["title"]
            taken |= cells


def test_the_reference_board_is_the_references():
    made = board("reference.json")
    assert (made["uid"], made["title"]) == ("gtc-demo", "Kvlane: KV-aware routing")
    shown = list(panels(made))
    for one, (title, unit, queries) in zip(shown, REFERENCE, strict=False):
        asked = [substituted(each["expr"]) for each in one["targets"]]
        assert (one["title"], one["fieldConfig"]["defaults"]["unit"]) == (title, unit)
        assert asked[:len(queries)] == queries, title
        assert all(each.startswith("demo_baseline_") for each in asked[len(queries):]), title
    assert [one["type"] for one in shown[:4]] == ["stat"] * 4
    assert all(one["options"]["graphMode"] == "area" for one in shown[:4])
    [row] = [one for one in made["panels"] if one["type"] == "row" and one["title"] == "Per Worker Metrics"]
    under = [one["title"] for one in shown if one["gridPos"]["y"] > row["gridPos"]["y"]][:3]
    assert under == [title for title, _, _ in REFERENCE[-3:]]


def test_the_reference_board_looks_like_the_references():
    for title, limit in (("TTFT p95 (SLO: 600ms)", 0.6), ("TPOT p95 (SLO: 60ms)", 0.06)):
        panel = titled(title)
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["thresholds"]["steps"][-1] == {"color": "red", "value": limit}
        assert defaults["custom"]["thresholdsStyle"]["mode"] == "line+area"
        assert [each["legendFormat"] for each in panel["targets"][:2]] == ["p95", "Inflight"]
        assert colour(panel, "p95") == "orange"
        right = properties(panel, "B")
        assert right["custom.axisPlacement"] == "right" and right["custom.lineStyle"]["fill"] == "dash"
        assert right["color"]["fixedColor"] == "light-blue"
        # The objective is drawn on the left scale only.
        assert right["custom.thresholdsStyle"]["mode"] == "off"
    for title in ("TTFT", "TPOT"):
        assert (colour(titled(title), "p50"), colour(titled(title), "p95")) == ("green", "orange")
    assert titled("Latency")["targets"][0]["legendFormat"] == "avg"
    cache = titled("KV Cache")
    assert cache["targets"][0]["legendFormat"] == "Cache Hit Rate"
    assert (cache["fieldConfig"]["defaults"]["min"], cache["fieldConfig"]["defaults"]["max"]) == (0, 1)
    for band in ("near 0 %", "30 to 50 %", "60 to 80 %", "above 80 %"):
        assert band in cache["description"]
    inflight = titled("Inflight Requests (per worker)")
    assert inflight["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal"
    assert inflight["targets"][0]["legendFormat"] == "{{pod}}"
    gpu = titled("GPU Utilization (per GPU)")
    assert gpu["fieldConfig"]["defaults"]["max"] == 100 and "40 to 80 %" in gpu["description"]
    assert gpu["targets"][0]["legendFormat"] == "{{Hostname}} GPU {{gpu}}"
    wait = titled("Engine Queue Wait Time (per worker)")
    assert wait["targets"][0]["legendFormat"] == "{{pod}}" and "0.1 s" in wait["description"]


def test_reference_lines_are_those_that_are_recorded():
    """Every panel of first tokens and of times between tokens has them, under names and labels the rules have."""
    rules = yaml.safe_load((PROMETHEUS / "rules/reference-lines.yml").read_text(encoding="utf-8"))
    known = {(rule["record"], frozenset(rule["labels"].items())) for group in rules["groups"] for rule in group["rules"]}
    for title in ("TTFT p95 (SLO: 600ms)", "TPOT p95 (SLO: 60ms)", "TTFT", "TPOT", "Inter-Token Latency"):
        panel = titled(title)
        [line] = [each for each in panel["targets"] if each["expr"].startswith("demo_baseline_")]
        metric, labels = re.fullmatch(r"(\w+)\{(.*)\}", substituted(line["expr"])).groups()
        wanted = set(re.findall(r'(\w+)="([^"]*)"', labels))
        modes = {dict(have)["mode"] for record, have in known if record == metric and wanted <= have}
        assert modes == {"round_robin", "dynamo"}, title
        assert line["legendFormat"] == "{{mode}}, {{source}}"
        assert properties(panel, line["refId"])["custom.lineStyle"]["fill"] == "dot"


def test_tested_queries_are_the_boards():
    """promtool checks numbers of queries that are written down once more there: they have to be the same."""
    on_board = {substituted(expr) for _, expr in expressions(board("reference.json"))}
    tests = yaml.safe_load((PROMETHEUS / "tests/boards_test.yml").read_text(encoding="utf-8"))
    tested = {each["expr"] for test in tests["tests"] for each in test["promql_expr_test"] if "kvlane:" not in each["expr"]}
    assert tested <= on_board, tested - on_board
    own = {query for _, _, queries in REFERENCE for query in queries}
    assert own <= tested, own - tested


@pytest.mark.parametrize("name", BOARDS)
def test_every_query_parses(name, tmp_path):
    asked = [{"record": f"parsed:{n}", "expr": substituted(expr)} for n, (_, expr) in enumerate(expressions(board(name)))]
    rules = tmp_path / "rules.yml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "parsed", "rules": asked}]}))
    assert f"{len(asked)} rules found" in promtool("check", "rules", rules)


def test_provisioning_fits_the_boards():
    [source] = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert source["type"] == "prometheus" and source["isDefault"]
    scraped = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraped
    [provider] = yaml.safe_load((GRAFANA / "provisioning/dashboards/kvlane.yml").read_text())["providers"]
    assert provider["type"] == "file" and provider["options"]["path"] in (GRAFANA / "README.md").read_text()
