"""Runs fuzz targets for some time each and says how it went; fails when one of them found something.

    FUZZ_SECONDS=600 FUZZ_JOBS=1 python3 benches/fuzz/run.py [TARGET ...]

Every target is built first, by cargo-fuzz; corpora are made by seeds.py and grow in corpus/. What a target says is kept in
artifacts/TARGET.log, an input that breaks it in artifacts/TARGET/.
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
BUILT = HERE / "target/x86_64-unknown-linux-gnu/release"
TARGETS = sorted(path.stem for path in (HERE / "fuzz_targets").glob("*.rs"))
# An input may take so much time and memory; more is a finding. Longer ones find little and take long.
LIMITS = ["-timeout=10", "-rss_limit_mb=2048", "-max_len=8192"]


def built():
    """One build for all; overflows and debug assertions are checked, and the code is safe, so no sanitizer."""
    cargo = os.environ.get("CARGO", "cargo")
    subprocess.run([cargo, "fuzz", "build", "--fuzz-dir", str(HERE), "--sanitizer", "none"], cwd=HERE.parent, check=True)
    subprocess.run([sys.executable, str(HERE / "seeds.py")], check=True)


def findings(target):
    return sorted(path.name for path in (HERE / "artifacts" / target).glob("*"))


def run(target, seconds):
    corpus, artifacts = HERE / "corpus" / target, HERE / "artifacts" / target
    corpus.mkdir(parents=True, exist_ok=True)
    artifacts.mkdir(parents=True, exist_ok=True)
    log, before, begun = HERE / "artifacts" / f"{target}.log", findings(target), time.monotonic()
    command = [BUILT / target, corpus, f"-max_total_time={seconds}", f"-artifact_prefix={artifacts}/", *LIMITS]
    with log.open("w") as out:
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, cwd=HERE).returncode
    said = log.read_text(errors="replace")
    steps = re.findall(r"^#(\d+)\t.*?cov: (\d+) ft: (\d+) corp: (\d+)", said, re.MULTILINE)
    runs, coverage, features, kept = steps[-1] if steps else (0, 0, 0, 0)
    ended = re.search(r"^Done (\d+) runs in", said, re.MULTILINE)
    found = [name for name in findings(target) if name not in before]
    if code != 0 and not found:
        found = [f"exit status {code}, see {log}"]
    return [target, ended[1] if ended else runs, f"{time.monotonic() - begun:.0f}", coverage, features, kept, ", ".join(found) or "none"]


def main():
    wanted = sys.argv[1:] or TARGETS
    if unknown := [target for target in wanted if target not in TARGETS]:
        sys.exit(f"there is no target {unknown[0]}; there are: {', '.join(TARGETS)}")
    seconds, jobs = int(os.environ.get("FUZZ_SECONDS", "600")), int(os.environ.get("FUZZ_JOBS", "1"))
    built()
    rows = [["target", "runs", "seconds", "coverage", "features", "corpus", "findings"]]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for row in pool.map(lambda target: run(target, seconds), wanted):
            print(f"{row[0]}: {row[1]} runs in {row[2]} s, findings: {row[-1]}", flush=True)
            rows.append(list(map(str, row)))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    print()
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    if any(row[-1] != "none" for row in rows[1:]):
        sys.exit("something was found: rerun it with the input, benches/fuzz/target/.../TARGET benches/fuzz/artifacts/TARGET/INPUT")


main()
