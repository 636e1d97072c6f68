"""kvlane-load beside an independent tool (aiperf): the same prompts, one simulated engine, both started fresh for each.

    python3 -m venv /tmp/aiperf && /tmp/aiperf/bin/pip install aiperf==0.13.0
    cargo build --release --workspace --bins
    /tmp/aiperf/bin/python loadtest/tests/crosscheck/crosscheck.py --bin target/release --aiperf /tmp/aiperf/bin/aiperf

Prints medians of both and fails when time to first token or inter-token latency differ by more than 5 %. Not part of the
test suite: installing aiperf takes minutes and brings half of Python's data libraries.
"""

import argparse
import contextlib
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import urllib.request

WITHIN = 0.05
ANSWER_TOKENS = 64
# The built-in model's: aiperf wants one, though the server counts.
TOKENIZER = pathlib.Path(__file__).parents[3] / "engine-adapters/models/kvlane-small"


def prompts(count: int, words: int) -> list[str]:
    """Texts that share nothing, so that every one of them is computed."""
    draw = random.Random(7)
    vocabulary = "block cache prefix worker token batch queue slot tree hash event index route turn".split()
    return [f"Case {n}: " + " ".join(draw.choice(vocabulary) for _ in range(words)) for n in range(count)]


@contextlib.contextmanager
def engine(binaries: pathlib.Path, port: int):
    worker = subprocess.Popen(
        [binaries / "kvlane-worker", "--port", str(port), "--events-port", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(100):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
                break
            except OSError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        worker.kill()
        worker.wait()


def ours(binaries, url, file, count, concurrency):
    report = file.parent / "ours.json"
    subprocess.run(
        [binaries / "kvlane-load", "run", "--url", url, "--prompts", file, "--concurrency", str(concurrency),
         "--max-tokens", str(ANSWER_TOKENS), "--body", '{"ignore_eos": true}', "--duration", str(count), "--warm-up", "0",
         "--json", report, "--view", "plain"],
        check=False,
    )
    everything = json.loads(report.read_text())["report"]["all"]
    return {
        "requests": everything["requests"],
        "ttft_ms": everything["ttft_s"]["p50"] * 1e3,
        "itl_ms": everything["tpot_s"]["p50"] * 1e3,
        "latency_ms": everything["e2e_s"]["p50"] * 1e3,
    }


def theirs(aiperf, url, file, count, concurrency):
    artifacts = file.parent / "aiperf"
    subprocess.run(
        [aiperf, "profile", "-m", "kvlane-small", "--url", url, "--endpoint-type", "chat", "--streaming",
         "--input-file", file, "--custom-dataset-type", "single_turn", "--concurrency", str(concurrency),
         "--request-count", str(count), "--extra-inputs", f"max_tokens:{ANSWER_TOKENS}", "--extra-inputs", "ignore_eos:true",
         "--use-server-token-count", "--tokenizer", TOKENIZER, "--ui", "none", "--artifact-dir", artifacts],
        check=True,
    )
    summary = json.loads(next(artifacts.rglob("*aiperf.json")).read_text())
    median = lambda name: summary[name]["p50"]
    return {
        "requests": summary["request_count"]["avg"],
        "ttft_ms": median("time_to_first_token"),
        "itl_ms": median("inter_token_latency"),
        "latency_ms": median("request_latency"),
    }


def main() -> int:
    flags = argparse.ArgumentParser()
    flags.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("target/release"))
    flags.add_argument("--aiperf", default="aiperf")
    flags.add_argument("--concurrency", type=int, default=1)
    flags.add_argument("--requests", type=int, default=60)
    flags.add_argument("--words", type=int, default=2500)
    flags.add_argument("--port", type=int, default=8191)
    given = flags.parse_args()
    with tempfile.TemporaryDirectory() as place:
        file = pathlib.Path(place) / "prompts.jsonl"
        texts = prompts(10 * given.requests, given.words)
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        with engine(given.bin, given.port) as url:
            found = ours(given.bin, url, file, given.requests, given.concurrency)
        with engine(given.bin, given.port) as url:
            other = theirs(given.aiperf, url, file, given.requests, given.concurrency)
    worst = 0.0
    print(f"{'median':<12} {'kvlane-load':>12} {'aiperf':>12} {'differs by':>10}")
    for name in ("requests", "ttft_ms", "itl_ms", "latency_ms"):
        share = found[name] / other[name] - 1
        print(f"{name:<12} {found[name]:>12.2f} {other[name]:>12.2f} {share:>+10.1%}")
        if name in ("ttft_ms", "itl_ms"):
            worst = max(worst, abs(share))
    print("agree" if worst <= WITHIN else f"differ by more than {WITHIN:.0%}")
    return 0 if worst <= WITHIN else 1


if __name__ == "__main__":
    sys.exit(main())
