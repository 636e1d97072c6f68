#!/usr/bin/env python3
"""Makes rules/reference-lines.yml: the recorded figures as lines for boards to draw beside live ones.

`kvlane-load report` makes such rules of any sweep's file. The recorded figures (loadtest/reference/baselines.json) are kept
in a shorter form, so they are put into a sweep's form first. KVLANE_BIN says where kvlane-load is (target/debug).
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RULES = HERE / "rules/reference-lines.yml"
# What the two columns of the recording are called as modes: round robin, and the plain cost of Dynamo.
MODES = {"rr": "round_robin", "kv": "dynamo"}


def as_sweep(recorded):
    """One cell for each mode and level, its figures as they were recorded."""
    cells = [
        {"mode": mode, "level": level, "repeat": 0, "figures": {key: values[at] for key, values in recorded[column].items()}}
        for column, mode in MODES.items()
        for at, level in enumerate(recorded["levels"])
    ]
    objective = {"ttft_s": recorded["slo"]["ttft_p95_ms"] / 1e3, "tpot_s": recorded["slo"]["tpot_p95_ms"] / 1e3}
    recording = {
        "name": "recorded",
        "about": recorded["source"],
        "levels_are": "conversations at a time",
        "conditions": {},
        "cells": cells,
    }
    return {"schema": "kvlane-load.sweep/1", "version": "0", "source": "measured", "objective": objective, "sets": [recording]}


def made():
    recorded = json.loads((ROOT / "loadtest/reference/baselines.json").read_text(encoding="utf-8"))
    kvlane_load = pathlib.Path(os.environ.get("KVLANE_BIN", ROOT / "target/debug")) / "kvlane-load"
    with tempfile.TemporaryDirectory() as out:
        sweep = pathlib.Path(out, "sweep.json")
        sweep.write_text(json.dumps(as_sweep(recorded)), encoding="utf-8")
        command = [kvlane_load, "report", sweep, "--out", out]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60)
        return pathlib.Path(out, "reference-rules.yml").read_text(encoding="utf-8")


if __name__ == "__main__":
    if "--check" not in sys.argv[1:]:
        RULES.write_text(made(), encoding="utf-8")
    elif RULES.read_text(encoding="utf-8") != made():
        sys.exit(f"{RULES.name}: not what kvlane-load makes of the recorded figures; run python3 {pathlib.Path(__file__).name}")
