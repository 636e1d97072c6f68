"""The plain manifests, built by every kubectl there is."""

import pytest

import manifests
import test_helm

FOLDERS = ("base", "overlays/round-robin", "overlays/simulated")


@pytest.fixture(params=manifests.kubectls() or [pytest.param(None, marks=pytest.mark.skip(reason="kubectl is not there"))])
def kubectl(request):
    return request.param


@pytest.fixture(params=FOLDERS)
def docs(request, kubectl):
    return manifests.kustomized(request.param, kubectl)


def test_every_document_is_of_its_kind(docs):
    assert [wrong for document in docs if (wrong := manifests.problem(document))] == []


def test_parts_fit_together(docs):
    test_helm.manifests_fit(docs)
    test_helm.policies_fit(docs)
    test_helm.rights_fit(docs)


def test_the_programs_understand_it(docs):
    for _, container in manifests.containers(docs):
        name = manifests.program(container)
        if name == "kvlane":
            shown = manifests.settings(docs, container)
            used = {origin.removeprefix("environment ") for _, origin in shown.values()}
            assert set(manifests.environment(container)) - used == {"POD_NAMESPACE"}
            assert shown["workers.kubernetes"][0] == "dynamo-workload/kvlane-workers:http"
        elif name:
            done = manifests.understood(container)
            assert done.returncode == 0, done.stderr
        else:
            flags = {argument.split("=")[0] for argument in container["args"][1:]}
            assert container["name"] == "nats" or flags <= test_helm.VLLM


def test_the_baseline_is_one_value(kubectl):
    base, overlay = (manifests.by_name(manifests.kustomized(folder, kubectl)) for folder in FOLDERS[:2])
    ((path, here, there),) = manifests.differences(base, overlay)
    assert (path[0], path[-1], here, there) == ("Deployment/kvlane-router", "value", "kv", "round_robin")


def test_simulated_needs_neither_gpu_nor_weights(kubectl):
    text = str(manifests.kustomized("overlays/simulated", kubectl))
    for gone in ("nvidia", "model-nfs-pvc", "vllm/", "/models"):
        assert gone not in text


@pytest.mark.skipif(len(manifests.kubectls()) < 2, reason="there is one kubectl only")
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_kubectl_builds_the_same(folder):
    first, *others = (manifests.by_name(manifests.kustomized(folder, kubectl)) for kubectl in manifests.kubectls())
    for other in others:
        assert list(manifests.differences(first, other)) == []


def test_it_runs_what_the_chart_runs(kubectl):
    """Engines' flags, and the images, are those of the chart's defaults."""
    chart, plain = manifests.rendered(), manifests.kustomized("base", kubectl)
    for name in ("engine", "nats", "router", "loadgen", "bridge"):
        one, other = (next(c for _, c in manifests.containers(docs) if c["name"] == name) for docs in (chart, plain))
        assert one["image"] == other["image"]
    one, other = (next(c for _, c in manifests.containers(docs) if c["name"] == "engine") for docs in (chart, plain))
    # Chunked prefill is vLLM's default.
    assert set(one["args"]) - set(other["args"]) == {"--enable-chunked-prefill"} and set(other["args"]) <= set(one["args"])
