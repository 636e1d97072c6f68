"""Manifests as they come out of Helm, kustomize and compose, and what can be asked of them without a cluster.

`python deploy/tests/manifests.py` brings up to date what is made from other files: the chart's copies and the table in its README.
"""

import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import jsonschema
import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm/kvlane"
PRESETS = CHART / "presets"
SCHEMAS = pathlib.Path(__file__).resolve().parent / "schemas"
KVLANE_BIN = pathlib.Path(os.environ.get("KVLANE_BIN", ROOT / "target/debug"))
KUBERNETES = "1.34"
RELEASE, NAMESPACE = "kvlane", "dynamo-workload"
PROGRAMS = ("kvlane", "kvlane-bridge", "kvlane-load", "kvlane-worker")


def tool(name):
    """A program of this virtual environment, or of the path."""
    found = shutil.which(name, path=str(pathlib.Path(sys.executable).parent)) or shutil.which(name)
    assert found, f"{name} is not there, expected after `pip install -r deploy/tests/requirements.txt`"
    return found


def run(*command, env=None, timeout=60):
    command = [str(part) for part in command]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, check=False)


# ---- Rendering -------------------------------------------------------------------------------------------------------


def helm(*arguments):
    return run(tool("helm"), *arguments)


def template(*arguments):
    """`helm template` of the chart, whatever comes of it."""
    return helm("template", RELEASE, CHART, "--namespace", NAMESPACE, "--kube-version", KUBERNETES, *arguments)


@functools.cache
def rendered(*arguments):
    """The chart's documents with these arguments."""
    done = template(*arguments)
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


def with_presets(*names):
    return [argument for name in names for argument in ("--values", str(PRESETS / f"{name}.yaml"))]


def kubectls():
    """Every kubectl there is, the old one of Debian 12 too where KUBECTL_OLD or .tools/kubectl-1.20 has it."""
    places = [shutil.which("kubectl"), os.environ.get("KUBECTL_OLD"), ROOT / ".tools/kubectl-1.20/usr/bin/kubectl"]
    return [str(place) for place in places if place and pathlib.Path(place).exists()]


@functools.cache
def kustomized(folder, kubectl):
    done = run(kubectl, "kustomize", DEPLOY / "kustomize" / folder)
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


def documents(text):
    return tuple(document for document in yaml.safe_load_all(text) if document)


# ---- Schemas ---------------------------------------------------------------------------------------------------------


def problem(document):
    """What is wrong with a document by its kind's schema, or None."""
    own = SCHEMAS / f"{document['kind'].lower()}.json"
    try:
        if own.exists():
            jsonschema.Draft202012Validator(json.loads(own.read_text(encoding="utf-8"))).validate(document)
        else:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
    except (kubernetes_validate.ValidationError, jsonschema.ValidationError) as error:
        return f"{name_of(document)}: {error.message} at {list(error.path)}"
    return None


def is_custom(document):
    return (SCHEMAS / f"{document['kind'].lower()}.json").exists()


def name_of(document):
    return f"{document['kind']}/{document['metadata']['name']}"


def differences(one, other, path=()):
    """Every value in which two trees differ: its path, here, there."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}, key=str):
            yield from differences(one.get(key), other.get(key), (*path, key))
    elif isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        for at, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from differences(left, right, (*path, at))
    elif one != other:
        yield path, one, other


def by_name(docs):
    return {name_of(document): document for document in docs}


# ---- Pods and who speaks to whom -------------------------------------------------------------------------------------


def of_kind(docs, *kinds):
    return [document for document in docs if document["kind"] in kinds]


def workloads(docs):
    return of_kind(docs, "Deployment", "StatefulSet", "Job")


def pod(workload):
    return workload["spec"]["template"]["spec"]


def pod_labels(workload):
    return workload["spec"]["template"]["metadata"]["labels"]


def containers(docs):
    for workload in workloads(docs):
        for container in pod(workload)["containers"]:
            yield workload, container


def program(container):
    """Which of our programs a container runs, or None."""
    command = pathlib.Path(container.get("command", [""])[0])
    return command.name if str(command.parent) == "/usr/bin" and command.name in PROGRAMS else None


def selects(selector, labels):
    return all(labels.get(key) == value for key, value in selector.items())


def selected(docs, selector):
    return [workload for workload in workloads(docs) if selects(selector, pod_labels(workload))]


def ports(container_or_workload):
    """Ports by name; of a workload, those of all its containers."""
    if "kind" in container_or_workload:
        return {k: v for container in pod(container_or_workload)["containers"] for k, v in ports(container).items()}
    return {port["name"]: port["containerPort"] for port in container_or_workload.get("ports", [])}


def admits(docs, source, target, port):
    """Whether the policies let pods of one workload (None: of some other) reach a named port of another."""
    policies = [
        policy
        for policy in of_kind(docs, "NetworkPolicy")
        if selects(policy["spec"]["podSelector"]["matchLabels"], pod_labels(target))
    ]
    if not policies:
        return True
    for rule in (rule for policy in policies for rule in policy["spec"].get("ingress", [])):
        if port not in [each["port"] for each in rule["ports"]]:
            continue
        peers = rule.get("from")
        if peers is None:
            return True
        labels = pod_labels(source) if source else {}
        if any("podSelector" in peer and selects(peer["podSelector"]["matchLabels"], labels) for peer in peers):
            return True
    return False


# ---- What the programs say to their arguments ------------------------------------------------------------------------

FIELDS = {"metadata.namespace": NAMESPACE, "status.podIP": "10.0.0.7"}


def environment(container, fields=None):
    """A container's variables as Kubernetes would set them."""
    values = {}
    for entry in container.get("env", []):
        if "value" in entry:
            values[entry["name"]] = expand(entry["value"], values)
        elif "fieldRef" in entry["valueFrom"]:
            values[entry["name"]] = (fields or FIELDS)[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            values[entry["name"]] = "nats://user:secret@elsewhere:4222"
    return values


def expand(text, values):
    return re.sub(r"\$\(([A-Z_]+)\)", lambda found: values.get(found[1], found[0]), text)


def arguments(container):
    values = environment(container)
    return [expand(argument, values) for argument in container.get("args", [])]


def settings(docs, container):
    """What `kvlane config --print` makes of a router's container: value and origin of every setting."""
    args = arguments(container)
    with tempfile.TemporaryDirectory() as folder:
        for document in of_kind(docs, "ConfigMap"):
            if "kvlane.toml" in document.get("data", {}):
                file = pathlib.Path(folder) / "kvlane.toml"
                file.write_text(document["data"]["kvlane.toml"], encoding="utf-8")
                args = [argument.replace("/etc/kvlane/kvlane.toml", str(file)) for argument in args]
        done = run(KVLANE_BIN / "kvlane", *args, "config", "--print", env=environment(container))
    assert done.returncode == 0, done.stderr
    shown = {}
    for line in done.stdout.splitlines():
        key, value, origin = re.match(r"(\S+) +(.*?) +(default|environment \S+|--\S+|/\S+)$", line).groups()
        shown[key] = (json.loads(value), origin)
    return shown


def understood(container):
    """Runs the program with its arguments and --help behind them: it reads them in order, and complains of the first wrong one."""
    return run(KVLANE_BIN / program(container), *arguments(container), "--help", env=environment(container))


# ---- What is made from other files -----------------------------------------------------------------------------------


def copies():
    """A chart reads only what is in its folder: these files have to be the same."""
    for source in sorted((DEPLOY / "grafana").glob("*.json")):
        yield source, CHART / "files/dashboards" / source.name
    for source in sorted((DEPLOY / "prometheus/rules").glob("*.yml")):
        yield source, CHART / "files/rules" / source.name


# What Kubernetes knows better than we do is not taken apart.
OPAQUE = {"resources", "podSecurityContext", "securityContext", "tolerations", "selector", "monitoringNamespace"}
BEGIN, END = "<!-- values: begin -->\n", "<!-- values: end -->\n"


def values_table():
    """The values with what values.yaml says of them, as Markdown."""
    rows, stack, comment = ["| value | default | |", "|---|---|---|"], [], []
    lines = (CHART / "values.yaml").read_text(encoding="utf-8").splitlines()
    for at, line in enumerate(lines):
        text = line.strip()
        if not text or text.startswith("#"):
            comment = [*comment, text[1:].strip()] if text else []
            continue
        found = re.match(r"( *)([A-Za-z][\w./-]*):(?: (.+))?$", line)
        if not found:
            comment = []
            continue
        depth, key, value = len(found[1]) // 2, found[2], found[3]
        stack = [*stack[:depth], key]
        path = ".".join(stack)
        below = lines[at + 1] if at + 1 < len(lines) else ""
        if key in OPAQUE:
            value = value or "see values.yaml"
        if not OPAQUE & set(stack[:-1]):
            if value is None and below.startswith("  " * (depth + 1)):
                if comment:
                    rows.append(f"| **`{path}`** | | {' '.join(comment)} |")
            else:
                shown = value if value == "see values.yaml" else f"`{value}`"
                rows.append(f"| `{path}` | {shown} | {' '.join(comment)} |".replace("  |", " |"))
        comment = []
    return "\n".join(rows) + "\n"


def readme_with_table(text):
    before, rest = text.split(BEGIN)
    return before + BEGIN + values_table() + END + rest.split(END)[1]


def main():
    for source, copy in copies():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
    readme = CHART / "README.md"
    readme.write_text(readme_with_table(readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
