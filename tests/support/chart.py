"""The chart of deploy/kubernetes, rendered by Helm's own library, and values for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml
from helm_python import Chart

from tests.support.operator_rules import Objects
from tests.support.tree import ROOT

CHART = ROOT / "deploy/kubernetes"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
DIGEST = "registry.example.com/govray@sha256:" + "1" * 64
EVERYTHING = {
    "image": DIGEST,
    "imagePullSecrets": ["registry"],
    "queues": {"topology": "racks"},
    "job": {"config": "jobs/train.yaml", "pool": "gpu", "topology": "example.com/rack"},
    "service": {"enabled": True, "host": "govray.example.com"},
    "monitoring": {"enabled": True},
    "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}],
    "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
}
PLATFORM: dict[str, Any] = {
    **EVERYTHING,
    "service": {"host": "govray.example.com"},
    "platform": {
        "enabled": True,
        "trustRoot": "{}",
        "authority": "-----BEGIN CERTIFICATE-----",
        "rights": "adapters: {acme-notes: {roles: [engineer]}}",
        "presigned": True,
    },
    "projects": {
        "research": {"namespace": "ml-research", "user": 20001},
        "product": {"namespace": "ml-product", "user": 20002},
    },
}
"""Service, queue and attestor outside of what jobs reach."""


def rendered(values: Mapping[str, Any]) -> Objects:
    """What Helm would apply in the namespace `ml`, by kind and name."""
    with Chart.load(CHART) as chart:
        text = chart.render({"image": DIGEST, **values}, name="govray", namespace="ml")
    found: dict[tuple[str, str], Any] = {}
    for manifest in text.values() if isinstance(text, dict) else [text]:
        for each in yaml.safe_load_all(manifest):
            if each:
                name, namespace = each["metadata"]["name"], each["metadata"].get("namespace")
                one = (each["kind"], name) not in found
                found[each["kind"], name if one else f"{namespace}/{name}"] = each
    return found
