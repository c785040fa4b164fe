"""The admission policy, its expressions evaluated as the API server does, over pods."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import celpy
import pytest
import yaml

from tests.support.tree import ROOT

FOLDER = ROOT / "deploy/kubernetes/admission"
POLICY, BINDING, PARAMS = yaml.safe_load_all((FOLDER / "verified-model.yaml").read_text())
POD: dict[str, Any] = yaml.safe_load((FOLDER / "model-pod.yaml").read_text())


def refusals(pod: dict[str, Any]) -> list[str]:
    """The messages of the rules that a pod breaks. An error refuses, as `failurePolicy` says."""
    environment = celpy.Environment()
    given = {"object": celpy.json_to_cel(pod), "params": celpy.json_to_cel(PARAMS)}
    found = []
    for rule in POLICY["spec"]["validations"]:
        program = environment.program(environment.compile(rule["expression"]))
        try:
            held = bool(program.evaluate(given))
        except celpy.CELEvalError:
            held = False
        if not held:
            found.append(rule["message"])
    return found


def spec(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    pod = copy.deepcopy(POD)
    change(pod["spec"])
    return pod


def first(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    return spec(lambda each: change(each["initContainers"][0]))


SIDECAR = {"name": "x", "image": POD["spec"]["containers"][0]["image"]}
WRITER = {**SIDECAR, "volumeMounts": [{"name": "model", "mountPath": "/m"}]}
READER = {**SIDECAR, "volumeMounts": [{"name": "source", "mountPath": "/s", "readOnly": True}]}


def test_the_pod_of_the_page_is_let_in() -> None:
    assert refusals(POD) == []
    assert BINDING["spec"]["policyName"] == POLICY["metadata"]["name"]
    assert POLICY["spec"]["failurePolicy"] == "Fail"
    assert BINDING["spec"]["paramRef"]["parameterNotFoundAction"] == "Deny"
    assert "Deny" in BINDING["spec"]["validationActions"]
    told = (ROOT / "docs/inference.md").read_text()
    assert "deploy/kubernetes/admission" in told


@pytest.mark.parametrize(
    ("pod", "says"),
    [
        (spec(lambda s: s.pop("initContainers")), "first init container"),
        (spec(lambda s: s["initContainers"].insert(0, SIDECAR)), "first init container"),
        (first(lambda c: c.update(image=SIDECAR["image"])), "first init container"),
        (first(lambda c: c.update(command=["true"])), "command"),
        (first(lambda c: c.pop("command")), "command"),
        (first(lambda c: c.update(args=["x"])), "command"),
        (first(lambda c: c.update(env=[{"name": "PYTHONPATH", "value": "/source"}])), "command"),
        (first(lambda c: c.update(restartPolicy="Always")), "command"),
        (first(lambda c: c["volumeMounts"].pop()), "mount source"),
        (first(lambda c: c["volumeMounts"][2].update(subPath="x")), "mount source"),
        (first(lambda c: c["volumeMounts"][1].update(mountPath="/other")), "mount source"),
        (
            first(lambda c: c["volumeMounts"].append({"name": "source", "mountPath": "/usr"})),
            "mount source",
        ),
        (
            spec(lambda s: s["volumes"].__setitem__(1, {"name": "model", "hostPath": {}})),
            "emptyDir",
        ),
        (spec(lambda s: s["volumes"][2].update(configMap={"name": "mine"})), "ConfigMap"),
        (spec(lambda s: s["containers"].append(WRITER)), "no container"),
        (spec(lambda s: s["containers"].append(READER)), "no container"),
        (spec(lambda s: s["initContainers"].append(WRITER)), "no container"),
        (spec(lambda s: s.update(ephemeralContainers=[WRITER])), "no container"),
        (
            spec(lambda s: s["volumes"].append({"name": "x", "nfs": {"server": "a"}})),
            "outside the pod",
        ),
        (spec(lambda s: s["containers"][0].update(image="server:latest")), "digest"),
    ],
)
def test_what_would_run_another_model_is_refused(pod: dict[str, Any], says: str) -> None:
    found = refusals(pod)
    assert any(says in each for each in found), found
