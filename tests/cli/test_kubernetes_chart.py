"""The chart of deploy/kubernetes, rendered by Helm's own library.

With ``GOVRAY_CRDS`` naming a folder of CustomResourceDefinitions each object is also validated
against the schema that its operator publishes. KubeRay has them in ray-operator/config/crd/bases,
Kueue in config/components/crd/bases. They are megabytes of YAML, so they don't lie here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from helm_python import Chart, HelmError, lint

from govray.cli import main
from tests.support.tree import ROOT

CHART = ROOT / "deploy/kubernetes"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
EVERYTHING = {"job": {"config": "jobs/train.yaml", "pool": "gpu"}, "service": {"enabled": True}}

Objects = Mapping[tuple[str, str], dict[str, Any]]


def rendered(values: Mapping[str, Any]) -> Objects:
    with Chart.load(CHART) as chart:
        text = chart.render(dict(values), name="govray", namespace="ml")
    found = {}
    for manifest in text.values() if isinstance(text, dict) else [text]:
        for each in yaml.safe_load_all(manifest):
            if each:
                found[each["kind"], each["metadata"]["name"]] = each
    return found


@pytest.fixture(scope="module")
def objects() -> Objects:
    return rendered(EVERYTHING)


def clusters(objects: Objects) -> Iterator[tuple[str, dict[str, Any]]]:
    fields = {"RayCluster": None, "RayJob": "rayClusterSpec", "RayService": "rayClusterConfig"}
    for (kind, _), each in objects.items():
        if kind in fields:
            field = fields[kind]
            yield kind, each["spec"][field] if field else each["spec"]


def test_helm_finds_no_fault() -> None:
    told = lint(CHART, EVERYTHING, strict=True, namespace="ml")
    # Severity 1 is advice, such as to have an icon.
    assert not [each for each in told.get("messages", ()) if each["severity"] > 1]


def test_the_operator_s_key_is_on_heads_alone(objects: Objects) -> None:
    for kind, spec in clusters(objects):
        assert VALUES["operatorKeySecret"] in str(spec["headGroupSpec"]), kind
        assert VALUES["operatorKeySecret"] not in str(spec["workerGroupSpecs"]), kind
        assert spec["authOptions"] == {"mode": "token", "secretName": VALUES["rayTokenSecret"]}
        assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_no_pod_is_root_and_each_runs_the_image_by_its_digest(objects: Objects) -> None:
    for kind, spec in clusters(objects):
        groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
        for pod in (group["template"]["spec"] for group in groups):
            [container] = pod["containers"]
            assert container["image"] == VALUES["image"], kind
            assert "@sha256:" in container["image"]
            assert container["securityContext"]["runAsNonRoot"] is True
            assert container["securityContext"]["allowPrivilegeEscalation"] is False


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


def test_projects_share_what_the_pools_have(objects: Objects) -> None:
    queues = [each["spec"] for (kind, _), each in objects.items() if kind == "ClusterQueue"]
    assert len({each["cohortName"] for each in queues}) == 1
    for flavor in queues[0]["resourceGroups"][0]["flavors"]:
        assert ("ResourceFlavor", flavor["name"]) in objects
    cpus = [
        int(resource["nominalQuota"])
        for queue in queues
        for flavor in queue["resourceGroups"][0]["flavors"]
        for resource in flavor["resources"]
        if resource["name"] == "cpu"
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
    assert group["template"]["spec"]["nodeSelector"] == {"market-type": "spot"}


@pytest.mark.skipif("GOVRAY_CRDS" not in os.environ, reason="GOVRAY_CRDS names no folder")
def test_each_object_is_what_its_operator_published(objects: Objects) -> None:
    published = schemas(Path(os.environ["GOVRAY_CRDS"]))
    for (kind, name), each in objects.items():
        schema = published[kind, each["apiVersion"]]
        errors = [
            f"{kind} {name} {e.json_path}: {e.message}"
            for e in jsonschema.Draft202012Validator(schema).iter_errors(each)
        ]
        assert not errors, errors
        wrong = {**each, "spec": {**each.get("spec", {}), "maxWorkers": 3}}
        assert list(jsonschema.Draft202012Validator(schema).iter_errors(wrong)), kind


def schemas(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """(kind, apiVersion) → JSON schema, in which an unknown field is an error."""
    found = {}
    for path in folder.glob("*.yaml"):
        definition = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)["spec"]
        for version in definition["versions"]:
            schema = strict(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}
            key = definition["names"]["kind"], f"{definition['group']}/{version['name']}"
            found[key] = schema
    return found


def strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items() if key != "format"}
    if made.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    properties = made.get("properties")
    if isinstance(properties, dict) and not made.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made
