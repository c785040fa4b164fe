"""The chart of deploy/kubernetes, rendered by Helm's own library.

With ``GOVRAY_CRDS`` naming a folder of CustomResourceDefinitions each object is also validated
against the schema that its operator publishes. KubeRay has them in ray-operator/config/crd/bases,
Kueue in config/components/crd/bases. They are megabytes of YAML, so they don't lie here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from helm_python import HelmError, lint

from govray.cli import main
from govray.platform.attestor.settings import read_settings
from govray.platform.queue.placement import Slot
from govray.platform.queue.ray_job import Pods, Tenant, ray_job
from govray.platform.queue.settings import read_queue
from govray.platform.service.identity.adapter_rights import read_rights
from govray.platform.store.tables import QueueEntry
from tests.support.chart import CHART, DIGEST, EVERYTHING, PLATFORM, VALUES, rendered
from tests.support.operator_rules import (
    Image,
    Objects,
    clusters,
    faults,
    parts,
    quantity,
    schemas,
)
from tests.support.tree import ROOT

IMAGE = Image(
    (ROOT / "deploy/Containerfile").read_text(),
    frozenset(re.findall(r"^([\w-]+)==", (ROOT / "deploy/constraints.txt").read_text(), re.M)),
)


@pytest.fixture(scope="module")
def objects() -> Objects:
    return rendered(EVERYTHING)


@pytest.fixture(scope="module")
def platform() -> Objects:
    return rendered(PLATFORM)


def test_what_the_operators_and_the_kubelet_say_of_it(objects: Objects, platform: Objects) -> None:
    assert faults(objects, IMAGE) == []
    assert faults(rendered({}), IMAGE) == []
    assert faults(platform, IMAGE) == []


Change = Callable[[dict[tuple[str, str], Any]], Image | None]


def cluster(objects: Any, kind: str) -> Any:
    return next(spec for found, _, spec in clusters(objects) if found == kind)


def image(**changed: Any) -> Change:
    return lambda _: replace(IMAGE, **changed)


def spec(kind: str, change: Callable[[Any], object]) -> Change:
    def changed(objects: dict[tuple[str, str], Any]) -> None:
        change(cluster(objects, kind))

    return changed


def pod(group: Any) -> Any:
    return group["template"]["spec"]


def uncovered(objects: dict[tuple[str, str], Any]) -> None:
    for (kind, _), each in objects.items():
        if kind == "ClusterQueue":
            group = each["spec"]["resourceGroups"][0]
            group["coveredResources"] = ["cpu", "nvidia.com/gpu"]
            for flavor in group["flavors"]:
                flavor["resources"] = [r for r in flavor["resources"] if r["name"] != "memory"]


def mounted(objects: dict[tuple[str, str], Any], *, fs_group: bool) -> None:
    head = pod(cluster(objects, "RayJob")["headGroupSpec"])
    head["containers"][0]["volumeMounts"].append({"name": "operator-secret", "mountPath": "/k"})
    if not fs_group:
        del head["securityContext"]["fsGroup"]


ROCKS = {"backend": "rocksdb", "storage": {"size": "1Gi"}}
NAMED = IMAGE.text.replace("USER 1000", "USER ray")
FAULTS: dict[str, tuple[Change, str]] = {
    "A1 no dashboard": (image(packages=IMAGE.packages - {"opencensus"}), "no dashboard"),
    "C1 RocksDB": (
        spec("RayCluster", lambda s: s.update(gcsFaultToleranceOptions=ROCKS)),
        "GCSFaultToleranceEmbeddedStorage",
    ),
    "C2 memory uncovered": (uncovered, "resource memory unavailable"),
    "C3 a user by name": (
        lambda o: (
            pod(cluster(o, "RayJob")["headGroupSpec"])["securityContext"].pop("runAsUser"),
            replace(IMAGE, text=NAMED),
        )[1],
        "non-numeric user",
    ),
    "C4 a key of root's": (lambda o: mounted(o, fs_group=False), "cannot read"),
    "C4 a key of a group's": (lambda o: mounted(o, fs_group=True), "govray refuses"),
    "C5 no jobs": (image(text=IMAGE.text.replace("COPY jobs ./jobs", "")), "no jobs/"),
    "C5 no service": (image(text=IMAGE.text.replace("COPY serve ./serve", "")), "no serve/"),
    "C6 a probe by wget": (
        spec(
            "RayService",
            lambda s: pod(s["workerGroupSpecs"][0])["containers"][0].pop("readinessProbe"),
        ),
        "wget",
    ),
    "C7 no account": (lambda o: o.pop(("ServiceAccount", "govray-jobs")) and None, "no account"),
    "C7 no upgrade": (lambda o: o.pop(("Job", "govray-store-upgrade")) and None, "makes"),
    "C8 a flavor of any node": (
        lambda o: o["ResourceFlavor", "govray-cpu"]["spec"].update(nodeLabels={}),
        "no labels",
    ),
    "C9 a cluster beside the queue": (
        lambda o: o["RayCluster", "govray"]["metadata"].update(labels={}),
        "has no queue",
    ),
    "a command for the submitter's shell": (
        lambda o: (
            [
                each["spec"].update(entrypoint="cd /home/ray && python jobs/train.py")
                for (kind, _), each in o.items()
                if kind == "RayJob"
            ]
            and None
        ),
        "would run what follows",
    ),
    "a head that waits for Serve": (
        spec(
            "RayService",
            lambda s: pod(s["headGroupSpec"])["containers"][0].update(
                readinessProbe={"httpGet": {"path": "/-/healthz", "port": "serve"}}
            ),
        ),
        "waits for Serve",
    ),
    "a hook before its account": (
        lambda o: o["Job", "govray-store-upgrade"]["metadata"]["annotations"].update(
            {"helm.sh/hook": "pre-install,pre-upgrade"}
        ),
        "made after it",
    ),
    "a request that no queue counts": (
        spec(
            "RayJob",
            lambda s: pod(s["workerGroupSpecs"][0])["containers"][0]["resources"][
                "requests"
            ].update({"ephemeral-storage": "20Gi"}),
        ),
        "resource ephemeral-storage unavailable",
    ),
    "a scaled cluster that is not elastic": (
        lambda o: o["RayCluster", "govray"]["metadata"].update(annotations={}),
        "elastic",
    ),
    "more workers than there is quota": (
        spec("RayJob", lambda s: s["workerGroupSpecs"][0].update(replicas=5)),
        "no flavor",
    ),
    "racks that no flavor knows": (
        lambda o: o["ResourceFlavor", "govray-gpu"]["spec"].pop("topologyName") and None,
        "no flavor",
    ),
    "an autoscaler without a token": (
        spec(
            "RayCluster",
            lambda s: pod(s["headGroupSpec"]).update(automountServiceAccountToken=False),
        ),
        "no token",
    ),
    "an open pod": (lambda o: o.pop(("NetworkPolicy", "govray-job")) and None, "any pod"),
}


def deployed(name: str, change: Callable[[Any, Any], object]) -> Change:
    """``change`` of a Deployment: its pods' spec and their last container."""

    def changed(objects: dict[tuple[str, str], Any]) -> None:
        spec = objects["Deployment", f"govray-{name}"]["spec"]["template"]["spec"]
        change(spec, spec["containers"][-1])

    return changed


def without(found: Any, value: object) -> None:
    found[:] = [each for each in found if value not in (each, each.get("name"))]


def role(verb: str, resource: str, *, more: bool = False) -> Change:
    def changed(objects: dict[tuple[str, str], Any]) -> None:
        for rule in objects["Role", "govray-queue"]["rules"]:
            if rule["resources"] == [resource]:
                (rule["verbs"].append if more else rule["verbs"].remove)(verb)

    return changed


def bound(objects: dict[tuple[str, str], Any]) -> None:
    jobs = {"kind": "ServiceAccount", "name": "govray-jobs", "namespace": "ml-research"}
    objects["RoleBinding", "govray-queue"]["subjects"].append(jobs)


def setting(old: str, new: str) -> Change:
    def changed(objects: dict[tuple[str, str], Any]) -> None:
        data = objects["ConfigMap", "govray-platform"]["data"]
        for name, text in data.items():
            data[name] = text.replace(old, new)

    return changed


def policy(name: str, change: Callable[[Any], object]) -> Change:
    return lambda objects: change(objects["NetworkPolicy", name]["spec"]) and None


KEY = {"name": "operator-secret", "secret": {"secretName": VALUES["operatorKeySecret"]}}
PLATFORM_FAULTS: dict[str, tuple[Change, str]] = {
    "a verb that the queue lacks": (role("delete", "rayjobs"), "may not delete rayjobs"),
    "a log that it may not read": (role("get", "pods/log"), "may not get pods/log"),
    "a secret that it may read": (role("get", "secrets", more=True), "lets secrets be read"),
    "rights of jobs": (bound, "gives jobs rights"),
    "a queue without a token": (
        deployed("queue", lambda pod, _: pod.update(automountServiceAccountToken=False)),
        "alone asks the API server",
    ),
    "an account that nobody makes": (
        lambda o: o.pop(("ServiceAccount", "govray-attestor")) and None,
        "no account govray-attestor",
    ),
    "the key in the queue's pod": (
        deployed("queue", lambda pod, _: pod["volumes"].append(KEY)),
        "has govray-operator-key",
    ),
    "the store's secret in the attestor's pod": (
        deployed(
            "attestor",
            lambda pod, _: pod["volumes"].append(
                {"secret": {"secretName": "govray-store"}, "name": "x"}
            ),
        ),
        "has govray-store",
    ),
    "a key that its group reads": (
        deployed(
            "attestor",
            lambda pod, container: container["volumeMounts"].append(
                {"name": "operator-secret", "mountPath": "/k"}
            ),
        ),
        "govray refuses",
    ),
    "secrets of root's": (
        deployed("service", lambda pod, _: pod["securityContext"].pop("fsGroup")),
        "cannot read",
    ),
    "a root": (
        deployed("attestor", lambda pod, _: pod["securityContext"].update(runAsUser=0)),
        "it is root",
    ),
    "a mount without a volume": (
        deployed("attestor", lambda pod, _: without(pod["volumes"], "register")),
        "no volume register",
    ),
    "a file that the settings lack": (
        lambda o: o["ConfigMap", "govray-platform"]["data"].pop("root.json") and None,
        "has no root.json",
    ),
    "a register on two nodes": (
        deployed(
            "queue",
            lambda pod, _: pod["volumes"].append(
                {"name": "r", "persistentVolumeClaim": {"claimName": "govray-register"}}
            ),
        ),
        "a claim of one node",
    ),
    "a key elsewhere": (setting("/private/operator/", "/etc/keys/"), "nothing lies at"),
    "a token elsewhere": (setting("/private/attestor/token", "/private/token"), "nothing lies at"),
    "runs that the attestor may write": (
        deployed(
            "attestor",
            lambda _, container: [
                each.pop("readOnly")
                for each in container["volumeMounts"]
                if each["name"] == "shared"
            ],
        ),
        "may write /shared",
    ),
    "models that it may not write": (
        deployed(
            "attestor",
            lambda _, container: [
                each.update(readOnly=True)
                for each in container["volumeMounts"]
                if each["name"] == "models"
            ],
        ),
        "may not write /srv",
    ),
    "a Service that leads nowhere": (
        lambda o: o["Service", "govray-attestor"]["spec"]["ports"][0].update(targetPort="tls"),
        "leads to no port",
    ),
    "a register of another name": (setting("govray-attestor.ml", "attestor.ml"), "no Service"),
    "a store that nobody makes": (
        deployed("service", lambda pod, _: without(pod["initContainers"], "upgrade")),
        "makes the service's store",
    ),
    "an attestor that all may ask": (
        policy("govray-attestor", lambda spec: spec["ingress"].append({"ports": [{"port": 8686}]})),
        "elsewhere {}: it reaches",
    ),
    "an attestor that jobs can't reach": (
        policy("govray-attestor", lambda spec: spec["ingress"][0]["from"].pop()),
        "ml-research {}: no way to",
    ),
    "a queue that may not ask it": (
        policy("govray-queue", lambda spec: spec["egress"].pop()),
        "'queue'}: it reaches the attestor",
    ),
    "a queue that asks no store": (
        policy("govray-queue", lambda spec: spec["egress"].pop(1)),
        "queue: its port 5432 is shut",
    ),
    "a service that nobody asks": (
        policy("govray-service", lambda spec: spec.update(ingress=[])),
        "ingress-nginx: no way to",
    ),
    "an attestor without a policy": (
        lambda o: o.pop(("NetworkPolicy", "govray-attestor")) and None,
        "elsewhere {}: it reaches the attestor",
    ),
}


@pytest.mark.parametrize("name", [*FAULTS, *PLATFORM_FAULTS])
def test_a_fault_put_back_is_found(name: str, objects: Objects, platform: Objects) -> None:
    change, found = (FAULTS | PLATFORM_FAULTS)[name]
    changed = dict(deepcopy(objects if name in FAULTS else platform))
    wrong = change(changed)
    told = faults(changed, wrong if isinstance(wrong, Image) else IMAGE)
    assert any(re.search(found, each) for each in told), told


def test_helm_finds_no_fault() -> None:
    told = lint(CHART, EVERYTHING, strict=True, namespace="ml")
    # Severity 1 is advice, such as to have an icon.
    assert not [each for each in told.get("messages", ()) if each["severity"] > 1]


def test_the_operator_s_key_is_on_the_head_of_a_job_by_hand_alone(objects: Objects) -> None:
    for kind, _, spec in clusters(objects):
        held = VALUES["operatorKeySecret"] in str(spec["headGroupSpec"])
        assert held == (kind == "RayJob")
        assert VALUES["operatorKeySecret"] not in str(spec["workerGroupSpecs"]), kind
        assert spec["authOptions"] == {"mode": "token", "secretName": VALUES["rayTokenSecret"]}
        assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


@pytest.mark.parametrize("image", ["", "registry.example.com/govray:latest"])
def test_an_image_without_a_digest_is_refused(image: str) -> None:
    with pytest.raises(HelmError, match="by its digest"):
        rendered({"image": image})


def test_a_job_waits_in_its_project_s_queue(objects: Objects) -> None:
    [job] = (each for (kind, _), each in objects.items() if kind == "RayJob")
    labels = job["metadata"]["labels"]
    assert ("LocalQueue", labels["kueue.x-k8s.io/queue-name"]) in objects
    assert ("WorkloadPriorityClass", labels["kueue.x-k8s.io/priority-class"]) in objects
    assert job["spec"]["suspend"] is True
    assert job["spec"]["backoffLimit"] == 3
    [group] = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "1"


NAMESPACES = {"projects": {"research": {"namespace": "ml-research", "user": 20001}}}


def test_the_queue_s_job_is_what_the_operators_and_its_rights_allow() -> None:
    """The RayJob of the queue's back end, among what the chart makes for it."""
    found = dict(rendered(NAMESPACES))
    name = "s-20261124-090000-0a1b2c3d"
    row = QueueEntry(id=name, job=f"{name}-1-00112233445566", kind="train", name="gpt", user="ada",
                     project="research", priority=0, slots=2)  # fmt: skip
    slot = Slot(labels=VALUES["pools"]["cpu"]["nodeSelector"], cpus=7, memory=28 << 30)
    tenant = Tenant(namespace="ml-research", user=20001, queue="research")
    job = ray_job(str(row.job), row, tenant, Pods(image=DIGEST, ray_version="2.60.0"), slot, {})
    job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = tenant.queue
    found["RayJob", row.job] = job
    assert faults(found, IMAGE) == []
    # The controls: the same rules find what it lacks.
    found["NetworkPolicy", "govray-jobs"] = {
        "metadata": {},
        "spec": {"podSelector": {"matchLabels": {"a": "b"}}},
    }
    assert any("any pod" in each for each in faults(found, IMAGE))


def test_what_the_chart_writes_is_what_queue_and_attestor_read(
    platform: Objects, tmp_path: Path
) -> None:
    for name, text in platform["ConfigMap", "govray-platform"]["data"].items():
        (tmp_path / name).write_text(text)
    queue = read_queue(tmp_path / "queue.yaml")
    assert queue.kubernetes is not None
    assert queue.attestor is not None
    assert {name: each.user for name, each in queue.kubernetes.projects.items()} == {
        "research": 20001, "product": 20002,
    }  # fmt: skip
    assert queue.slots["gpu"].memory == 56 << 30  # as Kueue's quota counts it
    assert queue.limits.pools == {name: pool["nodes"] for name, pool in VALUES["pools"].items()}
    attestor = read_settings(tmp_path / "attestor.yaml")
    assert queue.attestor.url == f"https://govray-attestor.ml.svc:{attestor.port}"
    assert read_rights(tmp_path / "rights.yaml").adapters["acme-notes"].roles == ("engineer",)
    # Jobs trust whom the queue trusts, and have the folder of runs.
    assert "SSL_CERT_FILE" in str(queue.kubernetes.container["env"])
    assert {each["name"] for each in queue.kubernetes.pod["volumes"]} == {
        each["name"] for each in queue.kubernetes.container["volumeMounts"]
    }
    # No job has a number of service, queue or attestor, nor the image's.
    users = {pods.spec["securityContext"]["runAsUser"] for _, pods, _ in parts(platform)}
    assert users == {1001, 1002}
    [serve] = [each["command"] for name, _, each in parts(platform) if name == "serve"]
    assert serve[serve.index("--rights") + 1] == "/etc/govray/rights.yaml"
    assert "--presigned" in serve
    plain = {**PLATFORM, "platform": {"enabled": True, "trustRoot": "{}"}}
    [serve] = [each["command"] for name, _, each in parts(rendered(plain)) if name == "serve"]
    assert not {"--rights", "--presigned"} & {*serve}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"service": {"enabled": True}}, "in its place"),
        ({"projects": {"research": {"namespace": "ml-research"}}}, "a number of their own"),
        ({"platform": {"enabled": True}}, "trustRoot"),
    ],
)
def test_a_platform_that_could_not_start_is_refused(values: Any, message: str) -> None:
    with pytest.raises(HelmError, match=message):
        rendered({**PLATFORM, **values})


@pytest.mark.parametrize("namespace", ["ml", "shared"])
def test_two_projects_have_no_namespace_together(namespace: str) -> None:
    with pytest.raises(HelmError, match="another's"):
        rendered({"projects": {name: {"namespace": namespace} for name in VALUES["projects"]}})


def test_projects_share_what_the_pools_have(objects: Objects) -> None:
    queues = [each["spec"] for (kind, _), each in objects.items() if kind == "ClusterQueue"]
    assert len({each["cohortName"] for each in queues}) == 1
    for flavor in queues[0]["resourceGroups"][0]["flavors"]:
        assert ("ResourceFlavor", flavor["name"]) in objects
    cpus = [
        quantity(resource["nominalQuota"])
        for queue in queues
        for flavor in queue["resourceGroups"][0]["flavors"]
        for resource in flavor["resources"]
        if resource["name"] == "cpu" and flavor["name"] != "govray-head"
    ]
    assert sum(cpus) == sum(pool["cpu"] * pool["nodes"] for pool in VALUES["pools"].values())


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"pool": "tpu"}, "no pool"),
        ({"project": "none"}, "no project"),
        ({"priority": "urgent"}, "no priority"),
        ({"acceleratorType": "H100"}, 'the pool "cpu" has no "H100"'),
        ({"labels": {"pool": "gpu"}}, 'the nodes of pool "cpu" have another "pool"'),
    ],
)
def test_a_job_of_no_pool_project_or_priority_is_refused(job: dict[str, str], message: str) -> None:
    with pytest.raises(HelmError, match=message):
        rendered({"job": {"config": "jobs/train.yaml"} | job})


def test_what_an_experiment_asks_for_is_what_its_job_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    asked = {
        "num_workers": 3, "gpus_per_worker": 1, "accelerator_type": "A100", "pool": "gpu",
        "priority": 5, "labels": {"market-type": "spot"},
    }  # fmt: skip
    experiment = yaml.safe_load((ROOT / "jobs/train.yaml").read_text()) | {"resources": asked}
    (file := tmp_path / "train.yaml").write_text(yaml.safe_dump(experiment))
    assert main(["queue", "helm", str(file), "--project", "product"]) == 0
    values = yaml.safe_load(capsys.readouterr().out)
    with pytest.raises(HelmError, match='the pool "gpu" has no "A100"'):
        rendered(values)
    found = rendered(values | {"pools": {"gpu": {"acceleratorType": "A100"}}})
    [job] = (each for (kind, _), each in found.items() if kind == "RayJob")
    assert job["metadata"]["labels"] == {
        "kueue.x-k8s.io/queue-name": "product",
        "kueue.x-k8s.io/priority-class": "high",
    }
    [group] = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["groupName"] == "gpu"
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == 3
    assert group["labels"] == {"pool": "gpu", "market-type": "spot"}
    assert group["template"]["spec"]["nodeSelector"] == {
        "govray.dev/pool": "gpu",
        "market-type": "spot",
    }


def test_kubernetes_takes_its_own_kinds(objects: Objects, platform: Objects) -> None:
    checked = set()
    for (kind, _), each in [*objects.items(), *platform.items()]:
        if each["apiVersion"] in {
            "v1", "apps/v1", "batch/v1", "networking.k8s.io/v1", "policy/v1",
            "rbac.authorization.k8s.io/v1",
        }:  # fmt: skip
            kubernetes_validate.validate(each, "1.34", strict=True)
            with pytest.raises(kubernetes_validate.ValidationError):
                kubernetes_validate.validate({**each, "specification": {}}, "1.34", strict=True)
            checked.add(kind)
    assert checked >= {
        "ServiceAccount", "NetworkPolicy", "Ingress", "Job", "PodDisruptionBudget", "Deployment",
        "Service", "PersistentVolumeClaim", "ConfigMap", "Role", "RoleBinding",
    }  # fmt: skip


@pytest.mark.skipif("GOVRAY_CRDS" not in os.environ, reason="GOVRAY_CRDS names no folder")
def test_each_object_is_what_its_operator_published(objects: Objects) -> None:
    published = schemas(Path(os.environ["GOVRAY_CRDS"]))
    for (kind, name), each in objects.items():
        schema = published.get((kind, each["apiVersion"]))
        if schema is None:
            continue  # Kubernetes' own, and Prometheus'
        errors = [
            f"{kind} {name} {e.json_path}: {e.message}"
            for e in jsonschema.Draft202012Validator(schema).iter_errors(each)
        ]
        assert not errors, errors
        wrong = {**each, "spec": {**each.get("spec", {}), "maxWorkers": 3}}
        assert list(jsonschema.Draft202012Validator(schema).iter_errors(wrong)), kind
