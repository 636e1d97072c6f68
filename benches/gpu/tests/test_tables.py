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


def test_what_is_missing_is_a_dash(monkeypatch, capsys):
    files = [str(RESULTS / name) for name in ("main.json", "simulated.json")]
    monkeypatch.setattr(sys, "argv", ["tables.py", "--real", files[0], "--simulated", files[1]])
    tables.main()
    assert "| round_robin at 12 | " in capsys.readouterr().out


def test_what_is_published_is_what_was_measured(monkeypatch, capsys):
    real = [str(RESULTS / name) for name in ("main.json", "repeats.json", "earlier/sweeps.json")]
    monkeypatch.setattr(sys, "argv", ["tables.py", "--real", *real, "--simulated", str(RESULTS / "simulated.json")])
    tables.main()
    assert capsys.readouterr().out in (RESULTS.parents[1] / "GPU.md").read_text()
