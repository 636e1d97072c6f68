"""Three replicas on one GPU, Kvlane before them, and a sweep over ways of placing requests; goes on where it was left.

    python3 benches/gpu/prove.py --bin DIR --out DIR [--within 540] [--pieces main repeats] [-- FLAGS OF kvlane-load sweep]

Everything is started, measured and stopped in one go. Results are kept in OUT/PIECE.json, and what is there is not measured
again: a sweep can be cut into runs of minutes. Beside it lie the engines' step logs, one set a run.
"""

import argparse
import gzip
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "engine-adapters/models/kvlane-small"
REPLICAS, SLOTS, KV_BLOCKS = 3, 32, 5300
ROUTER, ADMIN, ENGINES = 8000, 8090, 8100
MODES = "round_robin,session,dynamo,kvlane"

# A common part (instructions, tools), a part of the conversation's own, and follow-ups that send all of it again.
CHATS = ["--prefix-groups", "12", "--prefix-tokens", "3500-4000", "--prefix-ratio", "0.5", "--turns", "3-5",
         "--max-tokens", "400", "--think", "0.5"]  # fmt: skip
# Documents that everybody shares whole: the least there is to gain.
SHARED = ["--documents", "10", "--document-tokens", "3500-4000", "--turns", "3-5", "--max-tokens", "400", "--think", "0.5"]
COURSE = ["--warm-up", "14", "--window", "36", "--snapshots", "1", "--snapshot-window", "36", "--fill", "12",
          "--no-early-stop", "--steady-start"]  # fmt: skip
# Every mode from light load to beyond the slots, once; two levels more often; light load more often, and a jump from there to just
# past the slots; the other workload.
PIECES = {
    "pilot": [*CHATS, "--modes", "round_robin,kvlane", "--levels", "12,84", "--repeats", "1", "--warm-up", "6", "--window", "20",
              "--snapshots", "1", "--snapshot-window", "20", "--fill", "6", "--no-early-stop", "--steady-start"],
    "main": [*CHATS, *COURSE, "--modes", MODES, "--levels", "12,36,60,84,120", "--repeats", "1"],
    "repeats": [*CHATS, *COURSE, "--modes", MODES, "--levels", "36,84", "--repeats", "2", "--seed", "2"],
    "edges": [*CHATS, *COURSE, "--modes", MODES, "--levels", "12,100", "--repeats", "2", "--seed", "2"],
    "shared": [*SHARED, *COURSE, "--modes", MODES, "--levels", "36,84", "--repeats", "1"],
}  # fmt: skip


def env(given):
    """What the engines need that the machine has not."""
    wheels = sorted(pathlib.Path(given.bin).glob("*.whl"))
    site = pathlib.Path("/tmp/kvlane-site")
    if wheels and not site.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", site]
        subprocess.run([*pip, *wheels], check=True)
    return {**os.environ, "PYTHONPATH": f"{HERE}:{site}", "PYTHONUNBUFFERED": "1"}


class Started:
    """Processes that end with this one."""

    def __init__(self, logs):
        self.logs, self.running = logs, []

    def start(self, name, command, env):
        log = open(self.logs / f"{name}.log", "w")
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env, cwd=HERE, start_new_session=True)
        self.running.append((name, process))

    def check(self):
        for name, process in self.running:
            if process.poll() is not None:
                tail = (self.logs / f"{name}.log").read_text()[-2000:]
                sys.exit(f"{name} ended with {process.returncode}:\n{tail}")

    def stop(self):
        for _, process in reversed(self.running):
            try:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(10)
                os.killpg(process.pid, signal.SIGKILL)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def wait_for(started, url, seconds):
    end = time.monotonic() + seconds
    while True:
        started.check()
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return answer.read()
        except OSError as problem:
            if time.monotonic() > end:
                sys.exit(f"{url} did not answer within {seconds} s: {problem}")
            time.sleep(0.2)


def share_gpu(place, env):
    """One server through which all replicas launch, each with an equal part of the multiprocessors."""
    if not shutil.which("nvidia-cuda-mps-control"):
        return env, "none"
    place.mkdir(parents=True, exist_ok=True)
    env = {**env, "CUDA_MPS_PIPE_DIRECTORY": str(place), "CUDA_MPS_LOG_DIRECTORY": str(place)}
    subprocess.run(["nvidia-cuda-mps-control", "-d"], env=env, check=True)
    return {**env, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(100 // REPLICAS)}, f"MPS, {100 // REPLICAS} % each"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help="where kvlane and kvlane-load are, and wheels the machine lacks")
    parser.add_argument("--out", required=True, help="where results are kept")
    parser.add_argument("--pieces", nargs="+", default=["main"], choices=[*PIECES], help="in this order, one after the other")
    parser.add_argument("--shape", default="8b")
    parser.add_argument("--answers", default="250,60", help="MEAN,DEVIATION of the tokens of answers")
    parser.add_argument("--within", type=int, default=540, help="seconds after which nothing new is begun")
    parser.add_argument("more", nargs="*", help="more flags of kvlane-load sweep")
    given = parser.parse_args()
    begun_at, begun = time.time(), time.monotonic()
    binaries, out = pathlib.Path(given.bin).resolve(), pathlib.Path(given.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    logs = pathlib.Path("/tmp/kvlane-gpu-logs")
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir()
    with_site = env(given)
    mps = pathlib.Path("/tmp/kvlane-mps")
    on_gpu, sharing = (with_site, "none") if given.shape == "ledger" else share_gpu(mps, with_site)
    started = Started(logs)
    # Whoever ends this early ends what it started, too: engines that stay keep the GPU.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended early"))
    try:
        urls = [f"http://127.0.0.1:{ENGINES + 10 * n}" for n in range(REPLICAS)]
        for n, url in enumerate(urls):
            engine = ["--shape", given.shape, "--port", url.rsplit(":", 1)[1], "--kv-blocks", str(KV_BLOCKS), "--slots", str(SLOTS),
                      "--answer-tokens", given.answers, "--log", logs / f"steps-{n}.jsonl"]  # fmt: skip
            started.start(f"engine-{n}", [sys.executable, "-m", "engine", *engine], on_gpu)
        for url in urls:
            wait_for(started, f"{url}/health", 180)
        workers = [word for url in urls for word in ("--worker", f"url={url},slots={SLOTS}")]
        router = [binaries / "kvlane", "--host", "127.0.0.1", "--port", ROUTER, "--admin-port", ADMIN, "--model-path", MODEL]
        started.start("kvlane", [*map(str, router), "--log-level", "warn", *workers], with_site)
        wait_for(started, f"http://127.0.0.1:{ADMIN}/ready", 60)
        print(f"ready after {time.monotonic() - begun:.0f} s, {sharing}", flush=True)
        for piece in given.pieces:
            left = max(0, given.within - int(time.monotonic() - begun))
            sweep = [binaries / "kvlane-load", "sweep", "--url", f"http://127.0.0.1:{ROUTER}", "--admin-url",
                     f"http://127.0.0.1:{ADMIN}", *PIECES[piece], "--within", left, "--out", out / f"{piece}.json",
                     *given.more]  # fmt: skip
            code = subprocess.run([*map(str, sweep)], env=with_site).returncode
            started.check()
            if code:
                break
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        started.stop()
        if on_gpu is not with_site:
            subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", env=on_gpu)
    for n in range(REPLICAS):
        log = logs / f"steps-{n}.jsonl"
        if log.exists():
            with log.open("rb") as plain, gzip.open(out / f"steps-{n}-{int(begun_at)}.jsonl.gz", "wb") as packed:
                shutil.copyfileobj(plain, packed)
    sys.exit(code)


main()
