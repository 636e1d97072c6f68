"""The tables of benches/GPU.md: what is compared with what, and what is missing."""

import json
import pathlib
import sys

import tables

RESULTS = pathlib.Path(tables.__file__).parent / "results"


def test_ratios_are_of_seeds_that_both_have():
    by = {
        ("ours", 1): {1: {"x": 2.0}, 2: {"x": 8.0}, 3: {"x": 2.0}, 4: {"x": 2.0}},
        ("theirs", 1): {2: {"x": 4.0}, 3: {"x": None}, 5: {"x": 1.0}},
        ("many", 1): {1: {"x": 1.0}, 2: {"x": 4.0}, 3: {"x": 1.0}},
    }
    assert tables.ratio(by, "ours", "theirs", 1, "x") == "× 2.00"
    assert tables.ratio(by, "ours", "many", 1, "x") == "× 2.00 (2.00 to 2.00)"
    assert tables.ratio({**by, ("two", 1): {1: {"x": 1.0}, 2: {"x": 2.0}}}, "ours", "two", 1, "x") == "× 2.00 and 4.00"
    assert tables.ratio(by, "ours", "theirs", 2, "x") == tables.NONE


def test_the_first_file_that_has_a_seed_counts(tmp_path):
    def file(name, seeds):
        cells = [{"mode": "m", "level": 1, "repeat": seed, "figures": {"tops": tops}, "by_turn": []} for seed, tops in seeds]
        (tmp_path / name).write_text(json.dumps({"sets": [{"cells": cells}]}))
        return tmp_path / name

    by = tables.grouped([file("later", [(1, 10.0)]), file("earlier", [(1, 5.0), (2, 6.0)])])
    assert tables.values(by, "m", 1, "tops") == [10.0, 6.0]
    assert tables.values(by, "m", 1, "turn_1") == [], "no turn, no quantile"


def test_the_simulation_is_asked_only_what_real_runs_tell_apart(capsys):
    real = {
        ("a", 1): {1: {"tops": 10.0, "hit_pct": 50.0}, 2: {"tops": 11.0, "hit_pct": 60.0}, 3: {"tops": 12.0, "hit_pct": 70.0}},
        ("b", 1): {1: {"tops": 30.0, "hit_pct": 51.0}, 2: {"tops": 31.0, "hit_pct": 61.1}, 3: {"tops": 32.0, "hit_pct": 71.0}},
    }
    simulated = {("a", 1): {1: {"tops": 1.0, "hit_pct": 9.0}}, ("b", 1): {1: {"tops": 2.0, "hit_pct": 8.0}}}
    tables.ranking(real, simulated, ["a", "b"], [1])
    told = capsys.readouterr().out
    assert "In 1 comparisons the real intervals do not touch; the simulation has 1 of them" in told
    assert "In 2 comparisons they differ seed by seed; the simulation has 1 of them" in told
    assert "- otherwise: cached at 1: a 60.0, b 61.0; simulated 9.0, 8.0" in told


def test_what_is_missing_is_a_dash(monkeypatch, capsys):
    files = [str(RESULTS / name) for name in ("main.json", "simulated.json")]
    monkeypatch.setattr(sys, "argv", ["tables.py", "--real", files[0], "--simulated", files[1]])
    tables.main()
    assert "| round_robin at 12 | " in capsys.readouterr().out


def test_what_is_published_is_what_was_measured(monkeypatch, capsys):
    real = [str(RESULTS / name) for name in ("main.json", "repeats.json", "edges.json")]
    simulated = ["--simulated", str(RESULTS / "simulated.json"), "--levels", "12,36,60,84,120"]
    monkeypatch.setattr(sys, "argv", ["tables.py", "--real", *real, *simulated])
    tables.main()
    assert capsys.readouterr().out in (RESULTS.parents[1] / "GPU.md").read_text()
