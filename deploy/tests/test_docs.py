"""Commands in the documents, run as they stand.

Every block of shell in README.md and docs/ runs, file by file and from top to bottom, beside three simulated engines on ports 8101 to
8103, unless the fence says otherwise:

    ```sh               runs, and must succeed
    ```sh background    is started, and goes on until the file is over
    ```sh for 5s        is stopped after that time, which is no failure
    ```sh no-run        needs what is not here: a GPU, a cluster, Docker, hours

A comment `<!-- run: COMMAND -->` sets the scene for what follows; readers do not see it. Blocks of other documents have to say that
they are not run.
"""

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
KVLANE_BIN = pathlib.Path(os.environ.get("KVLANE_BIN", ROOT / "target/debug")).resolve()
RUN = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OTHERS = [path for path in ROOT.glob("**/*.md") if path not in RUN and not {"node_modules", "target", ".tools"} & set(path.parts)]
PORTS = (8000, 8090, 3000, 9400, 8101, 8102, 8103)
SECONDS = 150

PIECE = re.compile(r"^<!-- run: (?P<scene>.*?) -->$|^```(?:sh|bash|shell)(?P<how>[^\n]*)\n(?P<body>.*?)^```$", re.M | re.S)

# Commands fail where curl would only print an error. What a reader puts in himself is put in here.
PROLOGUE = r"""
set -eu
curl() { command curl --silent --show-error --fail-with-body --max-time 20 "$@"; }
until kvlane health http://127.0.0.1:8103/health 2>/dev/null; do sleep 0.1; done
"""
PUT_IN = {"gpu-0:8000": "127.0.0.1:8101", "REQUEST_ID": "documents-1"}


def pieces(path):
    """Scenes and blocks: where, how, and the commands."""
    text = path.read_text(encoding="utf-8")
    for found in PIECE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        where = f"{path.relative_to(ROOT)}:{line}"
        if found["scene"] is not None:
            yield where, "", found["scene"]
        else:
            yield where, found["how"].strip(), found["body"]


def script(path):
    """What of a file runs; nothing when there is nothing."""
    lines = []
    for where, how, body in pieces(path):
        for name, value in PUT_IN.items():
            body = body.replace(name, value)
        body = body.rstrip("\n")
        if how == "no-run":
            continue
        lines.append(f"echo '--- {where}'")
        if how == "background":
            lines += [f"{{ {body}\n}} &", "sleep 2", "kill -0 $!"]
        elif how.startswith("for "):
            seconds = re.fullmatch(r"for (\d+)s", how)
            assert seconds, f"{where}: {how!r}, expected something like `for 5s`"
            lines.append(f"timeout --kill-after=10 {seconds[1]} sh -c {quoted(body)} || [ $? = 124 ]")
        else:
            assert how == "", f"{where}: {how!r}, expected nothing, background, for Ns or no-run"
            lines.append(body)
    return PROLOGUE + "\n".join(lines) if lines else None


def is_taken(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_not_run_says_so(path):
    for where, how, _ in pieces(path):
        assert how == "no-run", f"{where}: {how!r}, expected no-run: only README.md and docs/ are run"


@pytest.mark.parametrize("path", [path for path in RUN if script(path)], ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_run(path, tmp_path):
    # Those of the document before were killed and may still be on their way out.
    patience = time.monotonic() + 10
    while (taken := [port for port in PORTS if is_taken(port)]) and time.monotonic() < patience:
        time.sleep(0.1)
    assert not taken, f"ports {taken} are taken, expected them free for the documents' commands"
    env = {**os.environ, "PATH": f"{KVLANE_BIN}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
    log = (tmp_path / "log").open("w+", encoding="utf-8")
    engines = subprocess.Popen(
        [KVLANE_BIN / "kvlane-worker", "--workers", "3", "--speed", "50", "--fault-switches"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    shell = subprocess.Popen(
        ["bash", "-c", script(path)], cwd=tmp_path, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        status = shell.wait(SECONDS)
    except subprocess.TimeoutExpired:
        status = "late"
    finally:
        try:
            os.killpg(shell.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        shell.wait()
        engines.terminate()
        engines.wait()
    log.seek(0)
    said = log.read()
    assert status == 0, f"{status}:\n{said[-4000:]}"
