"""The chart: what it renders, what it refuses, and whether our programs understand it."""

import json
import re
import shutil
import subprocess
import tomllib

import pytest
import yaml

import manifests
from manifests import CHART, PRESETS, ROOT, containers, name_of, of_kind, pod, pod_labels, rendered, with_presets, workloads

EVERYTHING = (
    "metrics.serviceMonitor.enabled=true,metrics.dcgm.enabled=true,metrics.rules.enabled=true,metrics.labels.release=prometheus,"
    "gateway.enabled=true,gateway.className=cilium,gateway.hostnames={demo.example.org},gateway.grafana.enabled=true,"
    "gateway.grafana.namespace=monitoring,gateway.tls.secretName=demo-tls,"
    "autoscaling.enabled=true,workers.defaults.autoscaling.enabled=true,"
    "model.storage.create=true,model.storage.nfs.server=10.0.0.2,model.storage.nfs.path=/models,"
    "loadgen.start=true,loadgen.readOnly=true,loadgen.noTexts=true,loadgen.title=A page,loadgen.prometheusUrl=http://prometheus:9090"
)
DIGEST = "sha256:" + "0" * 64
# Every way of installing it that is checked as a whole.
CASES = {
    "default": [],
    **{path.stem: with_presets(path.stem) for path in sorted(PRESETS.glob("*.yaml"))},
    "everything": ["--set", EVERYTHING],
    "gateway elsewhere": ["--set", "gateway.enabled=true,gateway.parentRefs[0].name=public,gateway.parentRefs[0].namespace=infra"],
    "several routers": ["--set", "replicaCount=3,router.discovery=dns"],
    "zmq": ["--set", "router.eventPlane=zmq,replicaCount=2"],
    "simulated, zmq": [*with_presets("simulated"), "--set", "router.eventPlane=zmq"],
    "simulated, nats alone": [*with_presets("simulated"), "--set", "router.discovery=nats"],
    "no events": ["--set", "workers.publishEvents=false"],
    "nats elsewhere": ["--set", "nats.enabled=false,nats.url=nats://nats.infra:4222"],
    "nats with a password": ["--set", "nats.enabled=false,nats.existingSecret.name=nats-url"],
    "engines elsewhere": [
        "--set",
        "workers.enabled=false,router.discovery=static,router.eventPlane=zmq,"
        r"router.workers={http://gpu-0:8000,url=http://gpu-1:8000\,events=tcp://gpu-1:5557\,slots=64}",
    ],
    "two pools": ["--set", "workers.pools.big.tensorParallel=4,workers.pools.big.replicas=1,workers.pools.main.replicas=2"],
    "a draft model": ["--set", "workers.defaults.speculative.draftModel=/models/draft"],
    "by digest": ["--set", f"image.digest={DIGEST},workers.images.vllm.digest={DIGEST},nats.image.digest={DIGEST}"],
    "clients": ["--set-json", 'networkPolicy.clients=[{"namespaceSelector":{"matchLabels":{"team":"chat"}}}]'],
    "own settings": ["--set", 'router.config=[routing]\nqueue_max = 7\n,extraArgs={--retries=1},extraEnv[0].name=KVLANE_LOG_FORMAT,extraEnv[0].value=json'],
    "no page, no admin, no policies": ["--set", "loadgen.enabled=false,router.admin.enabled=false,networkPolicy.enabled=false"],
}


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "-"))
def docs(request):
    return rendered(*CASES[request.param])


def router(docs):
    return next(container for _, container in containers(docs) if manifests.program(container) == "kvlane")


def component(docs, name):
    return next(w for w in workloads(docs) if pod_labels(w)["app.kubernetes.io/component"] == name)


# ---- By schema -------------------------------------------------------------------------------------------------------


def test_lint():
    for path in (None, *sorted(PRESETS.glob("*.yaml"))):
        done = manifests.helm("lint", CHART, "--strict", *(["--values", path] if path else []))
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_document_is_of_its_kind(docs):
    assert [wrong for document in docs if (wrong := manifests.problem(document))] == []


def test_names_are_unique(docs):
    names = [(name_of(document), document["metadata"].get("namespace")) for document in docs]
    assert len(names) == len(set(names))


def test_custom_resources_by_the_published_crds():
    """Schemas of ours catch fields that do not exist; these, made from the CRDs themselves, values that are wrong."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if not npm or not node:
        pytest.skip("npm is not there")
    folder = ROOT / ".tools/crds"
    pins = (manifests.SCHEMAS / "package.json").read_text(encoding="utf-8")
    if not (folder / "package.json").exists() or (folder / "package.json").read_text(encoding="utf-8") != pins:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "package.json").write_text(pins, encoding="utf-8")
        done = manifests.run(npm, "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock", "--prefix", folder, timeout=300)
        if done.returncode:
            shutil.rmtree(folder)
            pytest.skip(f"the models cannot be installed: {done.stderr[-200:]}")
    custom = [document for case in CASES.values() for document in rendered(*case) if manifests.is_custom(document)]
    custom += manifests.documents((manifests.DEPLOY / "examples/keda-scale-to-zero.yaml").read_text(encoding="utf-8"))[:1]
    assert {document["kind"] for document in custom} >= {"Gateway", "HTTPRoute", "PodMonitor", "ServiceMonitor", "ScaledObject"}
    validate = [node, str(manifests.SCHEMAS / "validate.mjs"), str(folder / "node_modules")]

    def held(documents):
        return subprocess.run(validate, input=json.dumps(documents), capture_output=True, text=True, timeout=60, check=False)

    done = held(custom)
    assert done.returncode == 0, done.stdout + done.stderr
    # And it does look.
    route = json.loads(json.dumps(next(document for document in custom if document["kind"] == "HTTPRoute")))
    route["spec"]["rules"][0]["timeouts"]["request"] = "for ever"
    done = held([route])
    assert done.returncode == 1 and "timeouts/request" in done.stdout


# ---- What is refused -------------------------------------------------------------------------------------------------

REFUSED = [
    ("router.mode=fastest", 'router.mode must be one of the following: "kv", "round_robin"'),
    ("routr.mode=kv", "Additional property routr is not allowed"),
    ("router.mod=kv", "Additional property mod is not allowed"),
    ("router.blockSize=0", "router.blockSize: Must be greater than or equal to 1"),
    ("router.temperature=-1", "router.temperature: Must be greater than or equal to 0"),
    ("replicaCount=many", "replicaCount: Invalid type. Expected: integer"),
    ("workers.defaults.kvCache.memoryFraction=2", "memoryFraction: Must be less than or equal to 1"),
    ("workers.defaults.tensorParallel=3", "workers.defaults.tensorParallel must be one of the following: 1, 2, 4, 8"),
    ("workers.pools.main.engine=tgi", "workers.pools.main"),
    ("workers.simulation.engine=b200", "workers.simulation.engine must be one of"),
    ("image.digest=abc", "image.digest: Does not match pattern"),
    ("image.tag=latest", "has the tag latest: expected a version or a digest"),
    ("metrics.interval=30s", "metrics.interval: Does not match pattern"),
    ("service.port=0", "service.port: Must be greater than or equal to 1"),
    ("nats.url=redis://somewhere", "nats.url: Does not match pattern"),
    ("nats.enabled=false", "router.eventPlane is nats and there is none: expected nats.enabled=true, nats.url"),
    ("nats.url=nats://nats:4222", "expected nats.enabled=false with them"),
    ("router.discovery=nats,router.eventPlane=zmq", "expected router.eventPlane=nats"),
    ("router.discovery=nats,workers.publishEvents=false", "expected workers.publishEvents=true"),
    ("router.discovery=static", "router.workers is empty: expected at least one worker"),
    ("workers.enabled=false", "expected router.discovery=static or nats"),
    ("workers.defaults.engine=trtllm", "expected router.discovery=nats, because only its bridge says what it is"),
    ("workers.defaults.engine=trtllm,router.discovery=nats,model.name=llama", "expected model.name to be empty or Llama-3.1-70B-Instruct-FP8"),
    ("gateway.enabled=true", "gateway.enabled needs gateway.className"),
    ("loadgen.readOnly=true", "loadgen.readOnly needs loadgen.start=true"),
]


@pytest.mark.parametrize(("values", "says"), REFUSED, ids=[values for values, _ in REFUSED])
def test_what_cannot_be_is_refused_with_a_sentence(values, says):
    done = manifests.template("--set", values)
    assert done.returncode != 0
    assert says in done.stderr


def test_the_schema_knows_every_value():
    """Nothing in values.yaml that the schema would let anybody misspell."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))

    def check(part, values, path):
        part = schema["$defs"][part["$ref"].rsplit("/", 1)[1]] if "$ref" in part else part
        if not isinstance(values, dict) or "properties" not in part:
            return
        assert part.get("additionalProperties") is False, path
        assert set(part["properties"]) == set(values), path
        for key, value in values.items():
            check(part["properties"][key], value, (*path, key))

    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    # Whole in every use, so that it can be left out of a part of it.
    check(schema, values, ())


def test_presets_are_of_values_that_exist():
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

    def check(preset, values, path):
        for key, value in preset.items():
            if path and path[-1] in ("nodeSelector", "affinity", "resources", "engineConfig"):
                continue
            assert key in values, (*path, key)
            if isinstance(value, dict):
                check(value, values[key], (*path, key))

    for path in PRESETS.glob("*.yaml"):
        check(yaml.safe_load(path.read_text(encoding="utf-8")), values, ())


# ---- The baseline ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", [None, "3xh200", "2xtp4", "4xtp2", "simulated"])
def test_the_baseline_is_one_value(preset):
    base = with_presets(preset) if preset else []
    one, other = rendered(*base), rendered(*base, *with_presets("round-robin"))
    found = list(manifests.differences(manifests.by_name(one), manifests.by_name(other)))
    assert [(path[0], here, there) for path, here, there in found] == [("Deployment/kvlane-router", "kv", "round_robin")]
    path = found[0][0]
    entry = component(one, "router")["spec"]["template"]["spec"]["containers"][path[-4]]["env"][path[-2]]
    assert entry["name"] == "DYN_ROUTER_MODE" and path[-1] == "value"


# ---- Understood by the programs --------------------------------------------------------------------------------------


def test_the_router_understands_its_settings(docs):
    container = router(docs)
    # Every variable of ours has to be a setting: one that is none would be passed over in silence.
    shown = manifests.settings(docs, container)
    used = {origin.removeprefix("environment ") for _, origin in shown.values() if origin.startswith("environment ")}
    assert set(manifests.environment(container)) - used == set()


def test_values_become_settings():
    docs = rendered("--set", "router.mode=least_loaded,router.policy=dynamo,router.blockSize=16,router.overlapScoreWeight=0.5,router.temperature=0.25,"
                             "router.indexMib=256,router.decisionHeaders=true,router.drain.waitSeconds=7,router.drain.timeoutSeconds=90,router.logLevel=debug,"
                             "dynamo.namespace=blue,router.admin.port=9999")
    shown = {key: value for key, (value, _) in manifests.settings(docs, router(docs)).items()}
    expected = {
        "routing.mode": "least_loaded", "routing.policy": "dynamo", "index.block_size": 16, "routing.overlap_weight": 0.5,
        "routing.temperature": 0.25, "index.max_mib": 256, "routing.decision_headers": True, "server.drain_wait_s": 7,
        "server.drain_timeout_s": 90, "log.level": "debug", "events.namespace": "blue", "admin.port": 9999, "events.plane": "nats",
        "workers.kubernetes": "dynamo-workload/kvlane-workers:http", "events.nats_url": "nats://kvlane-nats:4222",
        "model.path": "/models/Llama-3.1-70B-Instruct-FP8",
    }  # fmt: skip
    assert {key: shown[key] for key in expected} == expected
    assert pod(component(docs, "router"))["terminationGracePeriodSeconds"] > 7 + 90


def test_a_file_of_settings_is_read():
    docs = rendered(*CASES["own settings"])
    shown = manifests.settings(docs, router(docs))
    assert shown["routing.queue_max"][0] == 7 and "kvlane.toml" in shown["routing.queue_max"][1]
    assert shown["proxy.retries"] == (1, "--retries")
    assert shown["log.format"] == ("json", "environment KVLANE_LOG_FORMAT")


def test_workers_elsewhere_are_listed():
    docs = rendered(*CASES["engines elsewhere"])
    listed = manifests.settings(docs, router(docs))["workers.list"][0]
    assert listed == ["http://gpu-0:8000", "url=http://gpu-1:8000,events=tcp://gpu-1:5557,slots=64"]


def test_every_program_understands_its_arguments(docs):
    for _, container in containers(docs):
        if manifests.program(container) not in (None, "kvlane"):
            done = manifests.understood(container)
            assert done.returncode == 0, done.stderr


def test_a_program_complains_of_what_it_does_not_know():
    """What the test above rests on."""
    docs = rendered(*with_presets("simulated"))
    for name, wrong in (("kvlane-bridge", "--slot=64"), ("kvlane-worker", "--max-batch=many"), ("kvlane-load", "--listen=nowhere")):
        container = next(container for _, container in containers(docs) if manifests.program(container) == name)
        assert manifests.understood({**container, "args": [*container["args"], wrong]}).returncode == 2
    container = router(docs)
    wrong = {**container, "env": [*container["env"], {"name": "KVLANE_LOG_FORMAT", "value": "xml"}]}
    with pytest.raises(AssertionError, match="log.format"):
        manifests.settings(docs, wrong)


# What vLLM 0.32.0's argument parser has, of what is used here (read in its source, not run).
VLLM = {
    "--served-model-name", "--host", "--port", "--tensor-parallel-size", "--max-model-len", "--max-num-batched-tokens", "--max-num-seqs",
    "--block-size", "--kv-cache-dtype", "--gpu-memory-utilization", "--enable-chunked-prefill", "--no-enable-chunked-prefill",
    "--enable-prefix-caching", "--enable-prompt-tokens-details", "--kv-events-config", "--speculative-config", "--shutdown-timeout",
}  # fmt: skip
TRTLLM = {
    "--backend", "--host", "--port", "--tp_size", "--max_seq_len", "--max_num_tokens", "--max_batch_size", "--extra_llm_api_options",
}  # fmt: skip


def test_engines_get_flags_they_have(docs):
    for workload, container in containers(docs):
        known = {"vllm": VLLM, "trtllm-serve": TRTLLM}.get(container["command"][0])
        if known is None:
            continue
        args = manifests.arguments(container)
        assert args[0] == "/models/Llama-3.1-70B-Instruct-FP8"
        assert {argument.split("=")[0] for argument in args[1:]} <= known
        for argument in args:
            if "-config={" in argument:
                json.loads(argument.split("=", 1)[1])
        gpus = container["resources"]["limits"]["nvidia.com/gpu"]
        assert any(re.fullmatch(rf"--(tensor-parallel-size|tp_size)={gpus}", argument) for argument in args), name_of(workload)


@pytest.mark.parametrize(("preset", "replicas", "gpus", "fraction"), [("3xh200", 3, 1, 0.9), ("2xtp4", 2, 4, 0.9), ("4xtp2", 4, 2, 0.85)])
def test_presets_are_the_recorded_topologies(preset, replicas, gpus, fraction):
    docs = rendered(*with_presets(preset))
    workers = component(docs, "worker")
    engine = pod(workers)["containers"][0]
    assert workers["spec"]["replicas"] == replicas
    assert engine["resources"]["limits"]["nvidia.com/gpu"] == gpus
    assert {"--max_num_tokens=16384", "--max_batch_size=64", "--max_seq_len=16384"} <= set(engine["args"])
    config = next(d for d in of_kind(docs, "ConfigMap") if "config.yaml" in d["data"])["data"]["config.yaml"]
    config = yaml.safe_load(config)
    assert config["enable_chunked_prefill"] is True
    assert config["disable_overlap_scheduler"] is (preset == "4xtp2")
    cache = config["kv_cache_config"]
    assert cache["dtype"] == "fp8" and cache["free_gpu_memory_fraction"] == fraction and cache["tokens_per_block"] == 32
    assert cache["enable_block_reuse"] is True and cache["event_buffer_max_size"] > 0
    assert config.get("speculative_config", {}).get("max_draft_len") == (5 if preset == "4xtp2" else None)
    bridge = pod(workers)["containers"][1]
    assert {"--engine=trtllm", "--slots=64"} <= set(bridge["args"])
    assert not of_kind(docs, "Role"), "nothing is asked of Kubernetes"


def test_one_block_size_for_all(docs):
    sizes = set()
    for _, container in containers(docs):
        sizes |= {value for name, value in manifests.environment(container).items() if name == "DYN_KV_CACHE_BLOCK_SIZE"}
        sizes |= {argument.split("=")[1] for argument in manifests.arguments(container) if argument.startswith("--block-size=")}
    assert sizes == {"32"}


# ---- Together --------------------------------------------------------------------------------------------------------


def test_parts_fit_together(docs):
    manifests_fit(docs)


def manifests_fit(docs):
    """Everything that is named by one document is there in another. Kustomize's are held to it too."""
    services = {document["metadata"]["name"]: document for document in of_kind(docs, "Service")}
    for service in services.values():
        chosen = manifests.selected(docs, service["spec"]["selector"])
        assert chosen, name_of(service)
        for workload in chosen:
            for port in service["spec"]["ports"]:
                assert port["targetPort"] in manifests.ports(workload), (name_of(service), port)
    for workload, container in containers(docs):
        named = manifests.ports(container)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe in container:
                assert container[probe]["httpGet"]["port"] in named, (name_of(workload), probe)
        assert program_has_probes(container), name_of(workload)
        volumes = {volume["name"] for volume in pod(workload).get("volumes", [])}
        mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
        assert mounts <= volumes
        # Every service that is spoken to is there, on that port.
        texts = [*manifests.arguments(container), *manifests.environment(container).values()]
        for text in texts:
            for host, port in re.findall(r"(?:http|nats)://(kvlane[\w-]*):(\d+)", text):
                assert int(port) in [each["port"] for each in services[host]["spec"]["ports"]], text
        watched = manifests.environment(container).get("KVLANE_WORKERS_KUBERNETES")
        if watched:
            _, name, port = re.split("[/:]", watched)
            assert port in [each["name"] for each in services[name]["spec"]["ports"]]
    configs = {document["metadata"]["name"] for document in of_kind(docs, "ConfigMap")}
    claims = {document["metadata"]["name"] for document in of_kind(docs, "PersistentVolumeClaim")} | {"model-nfs-pvc"}
    for workload in workloads(docs):
        assert manifests.selects(workload["spec"]["selector"]["matchLabels"], pod_labels(workload))
        for volume in pod(workload).get("volumes", []):
            assert volume.get("configMap", {}).get("name", "") in configs | {""}
            assert volume.get("persistentVolumeClaim", {}).get("claimName", "model-nfs-pvc") in claims
        if workload["kind"] == "StatefulSet":
            assert workload["spec"]["serviceName"] in services
        account = pod(workload).get("serviceAccountName")
        assert account is None or account in {d["metadata"]["name"] for d in of_kind(docs, "ServiceAccount")}
    for document in of_kind(docs, "PodDisruptionBudget", "PodMonitor"):
        assert manifests.selected(docs, document["spec"]["selector"]["matchLabels"]), name_of(document)
    for document in of_kind(docs, "PodMonitor"):
        for workload in manifests.selected(docs, document["spec"]["selector"]["matchLabels"]):
            assert {each["port"] for each in document["spec"]["podMetricsEndpoints"]} <= set(manifests.ports(workload))
    for document in of_kind(docs, "ServiceMonitor"):
        if "namespaceSelector" in document["spec"]:
            continue
        chosen = [s for s in services.values() if manifests.selects(document["spec"]["selector"]["matchLabels"], s["metadata"]["labels"])]
        for endpoint in document["spec"]["endpoints"]:
            assert sum(endpoint["port"] in [port["name"] for port in s["spec"]["ports"]] for s in chosen) == 1, name_of(document)
    for document in of_kind(docs, "HorizontalPodAutoscaler"):
        target = document["spec"]["scaleTargetRef"]
        scaled = next(w for w in workloads(docs) if name_of(w) == f"{target['kind']}/{target['name']}")
        assert "replicas" not in scaled["spec"], "two would fight over it"
    for document in of_kind(docs, "HTTPRoute"):
        for backend in (backend for rule in document["spec"]["rules"] for backend in rule["backendRefs"]):
            if "namespace" not in backend:
                assert backend["port"] in [port["port"] for port in services[backend["name"]]["spec"]["ports"]]
    for document in of_kind(docs, "RoleBinding"):
        assert f"Role/{document['roleRef']['name']}" in manifests.by_name(docs)
        for subject in document["subjects"]:
            assert f"ServiceAccount/{subject['name']}" in manifests.by_name(docs)


def program_has_probes(container):
    # A bridge has no port.
    return manifests.program(container) == "kvlane-bridge" or {"readinessProbe", "livenessProbe"} <= set(container)


def test_policies_let_through_what_is_needed_and_nothing_else(docs):
    if not of_kind(docs, "NetworkPolicy"):
        pytest.skip("without policies")
    policies_fit(docs)


def policies_fit(docs):
    parts = {pod_labels(workload)["app.kubernetes.io/component"]: workload for workload in workloads(docs)}
    env = manifests.environment(router(docs))
    for workload in workloads(docs):
        chosen = [p for p in of_kind(docs, "NetworkPolicy") if manifests.selects(p["spec"]["podSelector"]["matchLabels"], pod_labels(workload))]
        assert chosen, name_of(workload)
        named = {port["port"] for policy in chosen for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        assert named <= set(manifests.ports(workload)), name_of(workload)

    def admits(source, target, port):
        return manifests.admits(docs, parts.get(source), parts[target], port)

    if "loadgen" in parts:
        assert admits("loadgen", "router", "http") and admits("loadgen", "router", "admin")
        assert "worker" not in parts or admits("loadgen", "worker", "http")
    if "worker" in parts:
        assert admits("router", "worker", "http")
        assert not admits("worker", "router", "admin") and not admits("stranger", "worker", "http")
        direct = env["DYN_EVENT_PLANE"] == "zmq"
        for port in {"kv-events", "kv-replay"} & set(manifests.ports(parts["worker"])):
            assert admits("router", "worker", port) is direct
    if "nats" in parts:
        assert admits("router", "nats", "client") and admits("worker", "nats", "client")
        assert not admits("loadgen", "nats", "client") and not admits("stranger", "nats", "client")
    assert not admits("stranger", "router", "admin")


def test_nobody_has_more_rights_than_it_needs(docs):
    rights_fit(docs)


def rights_fit(docs):
    for workload in workloads(docs):
        spec = pod(workload)
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        asks = any("KVLANE_WORKERS_KUBERNETES" in manifests.environment(container) for container in spec["containers"])
        assert spec["automountServiceAccountToken"] is asks, name_of(workload)
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False and context["capabilities"] == {"drop": ["ALL"]}
            ours = manifests.program(container) or container["name"] == "nats"
            assert context["readOnlyRootFilesystem"] is bool(ours), container["name"]
            for kind in ("requests", "limits"):
                assert {"cpu", "memory"} <= set(container["resources"][kind]), container["name"]
            assert re.fullmatch(r"[a-z0-9/-]+(:(?!latest)[\w.-]+|@sha256:[0-9a-f]{64})", container["image"]), container["image"]
            grace, sleep = spec.get("terminationGracePeriodSeconds", 30), container.get("lifecycle", {}).get("preStop", {}).get("sleep", {})
            drains = [int(argument.split("=")[1]) for argument in container.get("args", []) if argument.startswith("--shutdown-timeout=")]
            assert grace > sleep.get("seconds", 0) + sum(drains), container["name"]
    roles = [rule for document in of_kind(docs, "Role") for rule in document["rules"]]
    assert roles in ([], [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}])
    assert not of_kind(docs, "ClusterRole", "ClusterRoleBinding")


def test_the_grafana_route_and_streams_without_a_limit():
    docs = rendered(*CASES["everything"])
    rules = of_kind(docs, "HTTPRoute")[0]["spec"]["rules"]
    paths = {rule["matches"][0]["path"]["value"]: rule for rule in rules}
    assert set(paths) == {"/", "/v1", "/grafana"}
    assert paths["/"]["timeouts"] == paths["/v1"]["timeouts"] == {"request": "0s"}
    assert paths["/v1"]["backendRefs"][0]["name"] == "kvlane-router"
    assert of_kind(docs, "ReferenceGrant")[0]["metadata"]["namespace"] == "monitoring"


def test_a_new_version_of_the_router_leaves_engines_alone():
    """As long as the bridge's version is held."""
    held = "bridge.image.tag=0.1.0"
    before, after = (component(rendered("--set", f"{held},image.tag={tag}"), "worker")["spec"]["template"] for tag in ("0.1.0", "0.2.0"))
    assert before == after
    assert pod(component(rendered("--set", "image.tag=0.2.0"), "worker"))["containers"][1]["image"] == "kvlane:0.2.0"
    labels = pod_labels(component(rendered(), "worker"))
    assert not {"helm.sh/chart", "app.kubernetes.io/version"} & set(labels)


def test_a_scaler_of_your_own_is_left_alone():
    docs = rendered("--set", "workers.defaults.replicas=null")
    assert "replicas" not in component(docs, "worker")["spec"]


# ---- Copies, versions, documents -------------------------------------------------------------------------------------


def test_copies_are_up_to_date():
    pairs = list(manifests.copies())
    assert pairs
    stale = [copy.name for source, copy in pairs if not copy.exists() or copy.read_bytes() != source.read_bytes()]
    assert not stale, "expected after `python deploy/tests/manifests.py`"
    there = {path for folder in ("dashboards", "rules") for path in (CHART / "files" / folder).iterdir()}
    assert there == {copy for _, copy in pairs}


def test_boards_and_rules_are_passed_on_as_they_are():
    docs = rendered(*CASES["everything"])
    boards = [d for d in of_kind(docs, "ConfigMap") if d["metadata"]["labels"].get("grafana_dashboard") == "1"]
    rules = of_kind(docs, "PrometheusRule")
    for source, _ in manifests.copies():
        text = source.read_text(encoding="utf-8")
        if source.suffix == ".json":
            assert any(json.loads(board["data"].get(source.name, "null")) == json.loads(text) for board in boards), source.name
        else:
            assert yaml.safe_load(text) in [rule["spec"] for rule in rules], source.name


def test_the_table_of_values_is_up_to_date():
    readme = (CHART / "README.md").read_text(encoding="utf-8")
    assert readme == manifests.readme_with_table(readme), "expected after `python deploy/tests/manifests.py`"


def test_the_version_is_the_same_everywhere():
    version = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == version
    for folder in ("docker", "compose", "kustomize", "examples"):
        for path in sorted((manifests.DEPLOY / folder).rglob("*")):
            if path.is_file() and path.suffix in (".yml", ".yaml", ""):
                for found in re.findall(r"\bkvlane:(?:\$\{\w+:-)?(\d[\w.]*)", path.read_text(encoding="utf-8")):
                    assert found == version, path


def test_notes_warn(tmp_path):
    # Without a cluster Helm does not show notes, so here they are a document.
    shutil.copytree(CHART, tmp_path / "chart")
    templates = tmp_path / "chart/templates"
    text = (templates / "NOTES.txt").read_text(encoding="utf-8")
    (templates / "_notes.tpl").write_text('{{- define "notes" -}}' + text + "{{- end -}}", encoding="utf-8")
    (templates / "notes.yaml").write_text('{kind: Notes, text: {{ include "notes" . | toJson }}}', encoding="utf-8")

    def notes(*arguments):
        command = ("template", "kvlane", tmp_path / "chart", "--namespace", "dynamo-workload", "--show-only", "templates/notes.yaml")
        done = manifests.helm(*command, *arguments)
        assert done.returncode == 0, done.stderr
        return yaml.safe_load(done.stdout)["text"]

    plain = notes()
    assert "CAREFUL" not in plain and "--set router.mode=round_robin" in plain
    assert "http://kvlane-router.dynamo-workload.svc:8000, in mode kv" in plain
    assert "SIMULATED" in notes(*with_presets("simulated"))
    public = notes("--set", "gateway.enabled=true,gateway.className=cilium,replicaCount=2,networkPolicy.enabled=false")
    assert public.count("CAREFUL") == 3


# ---- Examples --------------------------------------------------------------------------------------------------------


def test_examples_are_of_their_kinds():
    names = set()
    for path in sorted((manifests.DEPLOY / "examples").glob("*.yaml")):
        for document in manifests.documents(path.read_text(encoding="utf-8")):
            names.add(document["kind"])
            assert manifests.problem(document) is None
    assert {"DynamoGraphDeployment", "ScaledObject", "Job"} <= names


def test_the_graph_deployment_is_the_recorded_one():
    text = (manifests.DEPLOY / "examples/dynamo-graph-deployment.yaml").read_text(encoding="utf-8")
    (graph,) = manifests.documents(text)
    assert graph["metadata"]["annotations"] == {"nvidia.com/enable-grove": "true"}
    services = graph["spec"]["services"]
    assert {name: service["replicas"] for name, service in services.items()} == {"Frontend": 1, "TrtllmWorker": 3}
    worker = services["TrtllmWorker"]["extraPodSpec"]["mainContainer"]["args"]
    assert {"--tensor-parallel-size=1", "--max-num-tokens=16384", "--max-batch-size=64", "--publish-events-and-metrics"} <= set(worker)
    override = next(argument for argument in worker if argument.startswith("--override-engine-args="))
    assert json.loads(override.split("=", 1)[1])["kv_cache_config"] == {"dtype": "fp8", "free_gpu_memory_fraction": 0.9}
    # The operator puts the pod together; what is said of it here has to be of a pod.
    for name, service in services.items():
        spec = dict(service["extraPodSpec"])
        spec["containers"] = [{"name": "main", **spec.pop("mainContainer"), "env": service.get("envs", [])}]
        made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name.lower()}, "spec": spec}
        assert manifests.problem(made) is None


def test_examples_fit_the_chart():
    docs = rendered()
    names = manifests.by_name(docs)
    path = manifests.DEPLOY / "examples"
    scaled, always = manifests.documents((path / "keda-scale-to-zero.yaml").read_text(encoding="utf-8"))
    target = scaled["spec"]["scaleTargetRef"]
    assert f"{target['kind']}/{target['name']}" in names
    assert scaled["spec"]["minReplicaCount"] == 0
    assert manifests.selected(docs, always["spec"]["selector"]) == [component(docs, "router")]
    job, _ = manifests.documents((path / "sweep-job.yaml").read_text(encoding="utf-8"))
    ((_, container),) = containers([job])
    assert manifests.understood(container).returncode == 0
    for host, port in re.findall(r"http://([\w-]+):(\d+)", " ".join(container["args"])):
        assert int(port) in [each["port"] for each in names[f"Service/{host}"]["spec"]["ports"]]
    # With the value its first lines name, it gets in; without it does not.
    peer = {"podSelector": {"matchLabels": pod_labels(job)}}
    opened = rendered("--set-json", f"networkPolicy.operators={json.dumps([peer])}")
    assert manifests.admits(opened, job, component(opened, "router"), "admin")
    assert not manifests.admits(docs, job, component(docs, "router"), "admin")
