"""What KubeRay, Kueue and the kubelet would say of objects, restated as rules.

The schemas of their CRDs say which fields there are. These rules say which values start, where the
chart once had others (`tests/cli/test_kubernetes_chart.py`). Each names the function that it
restates: of KubeRay v1.7.0 below ``ray-operator/``, of Kueue v0.19.2 below ``pkg/``, and of
Kubernetes v1.34 below ``pkg/``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import yaml

Objects = Mapping[tuple[str, str], dict[str, Any]]

QUEUE = "kueue.x-k8s.io/queue-name"
ELASTIC = "kueue.x-k8s.io/elastic-job"
TOPOLOGY = "kueue.x-k8s.io/podset-preferred-topology"
AUTOSCALER = {"cpu": 0.5, "memory": float(512 << 20)}
"""What the autoscaler's container adds to a head: controllers/ray/common/pod.go."""


@dataclass(frozen=True)
class Image:
    """What a Containerfile puts into the image. ``packages``: those that it installs, by name."""

    text: str
    packages: frozenset[str]

    @property
    def user(self) -> str:
        return re.findall(r"^USER (\S+)", self.text, re.M)[-1]

    @property
    def folders(self) -> set[str]:
        """Folders of the tree that lie in the working directory."""
        return set(re.findall(r"^COPY (\w+) \./\1$", self.text, re.M))

    def has(self, program: str) -> bool:
        return bool(re.search(rf"apt-get install.*\b{program}\b", self.text, re.S))


@dataclass(frozen=True)
class Pods:
    """Pods of one template. ``worker``: not a head, and not a submitter."""

    name: str
    count: int
    template: dict[str, Any]
    worker: bool = False

    @property
    def spec(self) -> dict[str, Any]:
        found: dict[str, Any] = self.template["spec"]
        return found

    @cached_property
    def containers(self) -> list[dict[str, Any]]:
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]


def clusters(objects: Objects) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each object that has a Ray cluster: its kind, itself, and the cluster's spec."""
    fields = {"RayCluster": None, "RayJob": "rayClusterSpec", "RayService": "rayClusterConfig"}
    for (kind, _), each in objects.items():
        if kind in fields:
            field = fields[kind]
            yield kind, each, each["spec"][field] if field else each["spec"]


def ray_pods(owner: dict[str, Any], spec: dict[str, Any]) -> list[Pods]:
    """The pods of a cluster, and of what submits a job."""
    head = Pods("head", 1, spec["headGroupSpec"]["template"])
    found = [head]
    for group in spec.get("workerGroupSpecs", ()):
        count = max(group.get("replicas", 1), group.get("minReplicas", 0))
        found.append(Pods(group["groupName"], count, group["template"], worker=True))
    if (
        owner["kind"] == "RayJob"
        and owner["spec"].get("submissionMode", "K8sJobMode") != "HTTPMode"
    ):
        default = {"spec": {"containers": [{"resources": SUBMITTER}]}}
        found.append(Pods("submitter", 1, owner["spec"].get("submitterPodTemplate", default)))
    return found


SUBMITTER = {"requests": {"cpu": "500m", "memory": "200Mi"}}


def all_pods(objects: Objects) -> Iterator[tuple[str, Pods]]:
    for kind, owner, spec in clusters(objects):
        for pods in ray_pods(owner, spec):
            yield f"{kind} {owner['metadata']['name']} {pods.name}", pods
    for (kind, name), each in objects.items():
        if kind in ("Job", "Deployment"):
            yield f"{kind} {name}", Pods(name, 1, each["spec"]["template"])


# KubeRay


def gates(objects: Objects, image: Image) -> Iterator[str]:
    """pkg/features/features.go: the gate of what a cluster asks for is off."""
    for kind, owner, spec in clusters(objects):
        if spec.get("gcsFaultToleranceOptions", {}).get("backend") == "rocksdb":
            name = owner["metadata"]["name"]
            yield f"{kind} {name}: the gate GCSFaultToleranceEmbeddedStorage is off"


def entrypoints(objects: Objects, image: Image) -> Iterator[str]:
    """controllers/ray/common/job.go: BuildJobSubmitCommand, which makes one line for a shell."""
    for kind, owner, _ in clusters(objects):
        if kind == "RayJob" and owner["spec"].get("submissionMode") != "HTTPMode":
            words = shlex.shlex(owner["spec"]["entrypoint"], posix=True, punctuation_chars=True)
            if any(set(each) <= set("();<>|&") for each in words):
                yield f"RayJob {owner['metadata']['name']}: its submitter would run what follows"


def probes(objects: Objects, image: Image) -> Iterator[str]:
    """controllers/ray/common/pod.go: initLivenessAndReadinessProbe. It gives a probe to whoever has
    none; the one of a service's worker calls wget."""
    for kind, owner, spec in clusters(objects):
        old = [int(part) for part in spec["rayVersion"].split(".")[:2]] < [2, 53]
        for pods in ray_pods(owner, spec):
            own = "readinessProbe" in pods.spec["containers"][0]
            calls = old or (kind == "RayService" and pods.worker and not own)
            if calls and pods.name != "submitter" and not image.has("wget"):
                name = owner["metadata"]["name"]
                yield f"{kind} {name} {pods.name}: its probe calls wget, which the image lacks"


def heads(objects: Objects, image: Image) -> Iterator[str]:
    """controllers/ray/rayservice_controller.go: reconcileServe. Applications are sent to a head
    that is ready; so a head that is ready when they answer waits for ever."""
    for kind, owner, spec in clusters(objects):
        head = spec["headGroupSpec"]["template"]["spec"]["containers"][0]
        asked = head.get("readinessProbe", {}).get("httpGet", {}).get("port")
        if kind == "RayService" and asked in ("serve", 8000):
            name = owner["metadata"]["name"]
            yield f"RayService {name}: its head waits for Serve, and Serve for it"


# Kueue


def queued(objects: Objects, image: Image) -> Iterator[str]:
    """controller/jobs/{rayjob,raycluster}: the webhooks' validateCreate, and what is not theirs.
    A job or cluster without a queue starts beside the quota (controller/jobframework)."""
    for kind, owner, spec in clusters(objects):
        metadata = owner["metadata"]
        where = f"{kind} {metadata['name']}"
        if kind == "RayService":
            continue  # it serves, and competes with nobody
        queue = metadata.get("labels", {}).get(QUEUE)
        if queue is None:
            yield f"{where}: it has no queue"
            continue
        if ("LocalQueue", queue) not in objects:
            yield f"{where}: there is no queue {queue}"
        elastic = metadata.get("annotations", {}).get(ELASTIC) == "true"
        if spec.get("enableInTreeAutoscaling") and not elastic:
            yield f"{where}: only an elastic one may scale"


def admitted(objects: Objects, image: Image) -> Iterator[str]:
    """scheduler/flavorassigner/flavorassigner.go: findFlavorForPodSets, checkFlavorForPodSets and
    fitsResourceQuota, in a cohort where nothing runs."""
    queues = {
        name: each["spec"] for (kind, name), each in objects.items() if kind == "ClusterQueue"
    }
    for kind, owner, spec in clusters(objects):
        queue = owner["metadata"].get("labels", {}).get(QUEUE)
        local = objects.get(("LocalQueue", queue or ""))
        if local is None or local["spec"]["clusterQueue"] not in queues:
            continue
        own = queues[local["spec"]["clusterQueue"]]
        cohort = [each for each in queues.values() if each["cohortName"] == own["cohortName"]]
        where = f"{kind} {owner['metadata']['name']}"
        [selector] = own["namespaceSelector"]["matchExpressions"]
        if owner["metadata"]["namespace"] not in selector["values"]:
            yield f"{where}: its queue is for another namespace"
        free: dict[tuple[str, str], float] = {}
        for each in cohort:
            for flavor in each["resourceGroups"][0]["flavors"]:
                for resource in flavor["resources"]:
                    key = flavor["name"], resource["name"]
                    free[key] = free.get(key, 0.0) + quantity(resource["nominalQuota"])
        group = own["resourceGroups"][0]
        for pods in ray_pods(owner, spec):
            # An elastic group grows from none: one more pod has to fit.
            asked = {
                name: max(pods.count, 1) * amount
                for name, amount in requests(pods, spec.get("enableInTreeAutoscaling")).items()
            }
            bare = sorted(asked.keys() - set(group["coveredResources"]))
            for name in bare:
                yield f"{where} {pods.name}: resource {name} unavailable in ClusterQueue"
            fits = [
                flavor["name"]
                for flavor in group["flavors"]
                if matches(pods, objects["ResourceFlavor", flavor["name"]]["spec"])
                and all(free.get((flavor["name"], name), 0.0) >= asked[name] for name in asked)
            ]
            if not fits and not bare:
                yield f"{where} {pods.name}: no flavor has its labels and room"
            for flavor in fits[:1]:
                for name, amount in asked.items():
                    free[flavor, name] -= amount


def flavors(objects: Objects, image: Image) -> Iterator[str]:
    """podset/podset.go: FromAssignment. A flavor's labels become the pods' node selector; one that
    has none leaves its pods to any node, whatever its quota counts."""
    for (kind, name), each in objects.items():
        if kind == "ResourceFlavor" and not each["spec"].get("nodeLabels"):
            yield f"ResourceFlavor {name}: it has no labels, so its pods may lie anywhere"


def matches(pods: Pods, flavor: dict[str, Any]) -> bool:
    labels = flavor.get("nodeLabels") or {}
    wanted = pods.spec.get("nodeSelector") or {}
    if any(labels[key] != value for key, value in wanted.items() if key in labels):
        return False
    topology = pods.template.get("metadata", {}).get("annotations", {}).get(TOPOLOGY)
    return topology is None or "topologyName" in flavor


def requests(pods: Pods, scaled: bool | None) -> dict[str, float]:
    """What a pod's containers ask for in all. A limit without a request is one, too."""
    found: dict[str, float] = {}
    for container in pods.spec["containers"]:
        given = container.get("resources", {})
        for name, amount in {**given.get("limits", {}), **given.get("requests", {})}.items():
            found[name] = found.get(name, 0.0) + quantity(amount)
    if scaled and pods.name == "head":
        found = {name: found.get(name, 0.0) + more for name, more in AUTOSCALER.items()}
    return found


_UNITS = {"": 1.0, "m": 1e-3, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


def quantity(text: object) -> float:
    amount = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]*)", str(text))
    assert amount is not None, text
    return float(amount[1]) * _UNITS[amount[2]]


# Kubelet


def users(objects: Objects, image: Image) -> Iterator[str]:
    """kubelet/kuberuntime/security_context_others.go: verifyRunAsNonRoot."""
    for where, pods in all_pods(objects):
        for container in pods.containers:
            said = {**pods.spec.get("securityContext", {}), **container.get("securityContext", {})}
            user = said.get("runAsUser", image.user)
            if not said.get("runAsNonRoot"):
                yield f"{where} {container['name']}: it may be root"
            elif not str(user).isdigit():
                yield f"{where} {container['name']}: image has non-numeric user ({user})"
            elif int(user) == 0:
                yield f"{where} {container['name']}: it is root"


def secret_files(objects: Objects, image: Image) -> Iterator[str]:
    """volume/volume_linux.go: changeFilePermission. A secret's files are root's; with an fsGroup,
    its group may read them. govray refuses a file that others than its owner may read."""
    for where, pods in all_pods(objects):
        group = pods.spec.get("securityContext", {}).get("fsGroup")
        secrets = {
            each["name"]: each["secret"]["secretName"]
            for each in pods.spec.get("volumes", ())
            # What anybody in the pod may read is no key: an attempt's own files.
            if "secret" in each and not where.startswith(f"RayJob {each['secret']['secretName']} ")
        }
        for container in pods.containers:
            for mount in container.get("volumeMounts", ()):
                if mount["name"] not in secrets:
                    continue
                secret = secrets[mount["name"]]
                if group is None:
                    yield f"{where} {container['name']}: uid {image.user} cannot read {secret}"
                elif container in pods.spec["containers"]:
                    yield f"{where} {container['name']}: govray refuses {secret}, of mode 0440"
        for container in pods.spec["containers"]:
            mounted = [each["mountPath"] for each in container.get("volumeMounts", ())]
            for each in container.get("env", ()):
                path = str(each.get("value", "")) if each["name"].endswith("_KEY") else ""
                if path and not any(path.startswith(f"{place}/") for place in mounted):
                    yield f"{where} {container['name']}: nothing lies at {path}"


def accounts(objects: Objects, image: Image) -> Iterator[str]:
    """serviceaccount admission: a pod of an account that is not there is refused. KubeRay needs the
    head's for its autoscaler (controllers/ray/raycluster_controller.go:
    reconcileAutoscalerServiceAccount), and then its token."""
    for where, pods in all_pods(objects):
        account = pods.spec.get("serviceAccountName", "default")
        if ("ServiceAccount", account) not in objects:
            yield f"{where}: there is no account {account}"
    for (kind, name), each in objects.items():
        hooks = each["metadata"].get("annotations", {}).get("helm.sh/hook", "")
        if kind == "Job" and "pre-install" in hooks:
            # Helm makes a chart's other objects after it: pkg/action/install.go, performInstall.
            yield f"Job {name}: its account is made after it"
    for kind, owner, spec in clusters(objects):
        told = spec["headGroupSpec"]["template"]["spec"].get("automountServiceAccountToken", True)
        if spec.get("enableInTreeAutoscaling") and not told:
            yield f"{kind} {owner['metadata']['name']}: its autoscaler has no token"


DASHBOARD = frozenset(
    re.split(r"[^\w-]", each)[0].lower().replace("_", "-")
    for each in requires("ray") or ()
    if 'extra == "default"' in each
)
"""What Ray's dashboard needs."""


def programs(objects: Objects, image: Image) -> Iterator[str]:
    """What the image has to hold: the entrypoint's files, and Ray's dashboard, without which there
    are no jobs (ray/dashboard/optional_deps.py)."""
    for name in sorted(DASHBOARD - image.packages):
        yield f"the image has no dashboard: it lacks {name}"
    for kind, owner, _ in clusters(objects):
        text = str(owner["spec"].get("entrypoint", "")) + owner["spec"].get("serveConfigV2", "")
        started = re.findall(r"python (\w+)/", text) + re.findall(r"import_path: (\w+)\.", text)
        for folder in set(started) - image.folders:
            yield f"{kind} {owner['metadata']['name']}: the image has no {folder}/"
        if "import_path" in text and "ENV PYTHONPATH=/home/ray" not in image.text:
            yield f"{kind} {owner['metadata']['name']}: Ray finds no modules of /home/ray"


def stores(objects: Objects, image: Image) -> Iterator[str]:
    """govray's own: a service over a store that nobody made or upgraded does not start."""
    commands = [
        each.get("command", []) for _, pods in all_pods(objects) for each in pods.containers
    ]
    serves = any(kind == "RayService" for kind, _ in objects)
    serves = serves or any(each[:2] == ["govray", "serve"] for each in commands)
    if serves and ["govray", "store", "upgrade"] not in commands:
        yield "nothing makes the service's store"


# Service, queue and attestor


NEEDED: Mapping[str, frozenset[str]] = {
    "rayjobs": frozenset({"get", "list", "create", "patch", "delete"}),
    "workloads": frozenset({"list"}),
    "pods": frozenset({"list"}),
    "pods/log": frozenset({"get"}),
    "secrets": frozenset({"create", "update"}),
}
"""What the queue asks of the API server in a project's namespace. The server of the tests refuses
everything else (`tests.support.kubernetes_server`)."""


def parts(objects: Objects) -> Iterator[tuple[str, Pods, dict[str, Any]]]:
    """The pods that run a command of govray's, with that and its container."""
    for where, pods in all_pods(objects):
        container = pods.spec["containers"][0]
        command = container.get("command", [])
        if where.startswith("Deployment") and command[:1] == ["govray"]:
            yield command[1], pods, container


def settings(objects: Objects, name: str) -> dict[str, Any]:
    """What a file of a ConfigMap says."""
    for (kind, _), each in objects.items():
        if kind == "ConfigMap" and name in each["data"]:
            found: dict[str, Any] = yaml.safe_load(each["data"][name])
            return found
    return {}


def granted(objects: Objects, account: str, namespace: str) -> set[tuple[str, str]]:
    """Resources and verbs that roles of a namespace give to an account."""
    bound = {
        each["roleRef"]["name"]
        for (kind, _), each in objects.items()
        if kind == "RoleBinding"
        and each["metadata"]["namespace"] == namespace
        and any(one["name"] == account for one in each["subjects"])
    }
    return {
        (resource, verb)
        for (kind, _), each in objects.items()
        if kind == "Role" and each["metadata"]["namespace"] == namespace
        and each["metadata"]["name"] in bound
        for rule in each["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }  # fmt: skip


def rights(objects: Objects, image: Image) -> Iterator[str]:
    """plugin/pkg/auth/authorizer/rbac/rbac.go: RuleAllows. A request is refused that no role of a
    bound account names. Nobody reads a secret through the API, and jobs ask it nothing."""
    tenants = settings(objects, "queue.yaml").get("kubernetes", {}).get("projects", {})
    for verb, pods, _ in parts(objects):
        for tenant in tenants.values() if verb == "queue" else ():
            account, namespace = pods.spec["serviceAccountName"], tenant["namespace"]
            given = granted(objects, account, namespace)
            wanted = {(resource, each) for resource in NEEDED for each in NEEDED[resource]}
            for resource, each in sorted(wanted - given):
                yield f"{account} may not {each} {resource} in {namespace}"
        if pods.spec["automountServiceAccountToken"] != (verb == "queue"):
            yield f"{verb}: the queue's pod alone asks the API server"
    for (kind, name), each in objects.items():
        if kind in ("Role", "ClusterRole"):
            for rule in each["rules"]:
                if {*rule["resources"]} & {"secrets", "*"} and {*rule["verbs"]} - {
                    "create", "update",
                }:  # fmt: skip
                    yield f"{kind} {name}: it lets secrets be read"
        given = {one["name"] for one in each.get("subjects", ())}
        if given & {"govray-jobs", "default"}:
            yield f"{kind} {name}: it gives jobs rights"


HOLDERS: Mapping[str, frozenset[str]] = {
    "operator": frozenset({"attest"}),
    "tls": frozenset({"attest"}),
    "attestor": frozenset({"attest", "queue", "serve"}),
    "store": frozenset({"queue", "serve"}),
}
"""Each secret, by its folder → the commands whose pods have it."""


def keys(objects: Objects, image: Image) -> Iterator[str]:
    """govray's own: which pods have a secret. A cluster has one where its driver signs by hand, or
    it is the service's."""
    folders = {}
    for _, pods in all_pods(objects):
        for volume in pods.spec.get("volumes", ()):
            if "secret" in volume and (folder := volume["name"].removesuffix("-secret")) in HOLDERS:
                folders[volume["secret"]["secretName"]] = folder
    for where, pods in all_pods(objects):
        command = [*pods.spec["containers"][0].get("command", []), "", ""][1]
        held = {
            each["secret"]["secretName"]
            for each in pods.spec.get("volumes", ())
            if "secret" in each
        } | set(re.findall(r"'secretKeyRef': {'name': '([^']+)'", str(pods.spec["containers"])))
        for secret in held & folders.keys():
            folder = folders[secret]
            by_hand = folder == "operator" and where.startswith("RayJob") and pods.name == "head"
            theirs = folder == "store" and (where.startswith("RayService") or command == "store")
            if command not in HOLDERS[folder] and not by_hand and not theirs:
                yield f"{where}: it has {secret}"


def mounts(objects: Objects, image: Image) -> Iterator[str]:
    """apis/core/validation/validation.go: ValidateVolumeMounts. The kubelet waits for a ConfigMap,
    or a file of it, that is not there (volume/configmap/configmap.go: SetUpAt). A claim of one node
    is attached to one (controller/volume/attachdetach/reconciler: reconcile)."""
    users: dict[str, int] = {}
    for where, pods in all_pods(objects):
        volumes = {each["name"]: each for each in pods.spec.get("volumes", ())}
        for each in volumes.values():
            claim = each.get("persistentVolumeClaim", {}).get("claimName")
            if ("PersistentVolumeClaim", claim) in objects:
                users[claim] = users.get(claim, 0) + pods.count
        for container in pods.containers:
            for mount in container.get("volumeMounts", ()):
                volume = volumes.get(mount["name"])
                if volume is None:
                    yield f"{where} {container['name']}: it has no volume {mount['name']}"
                elif "configMap" in volume:
                    name = volume["configMap"]["name"]
                    found = objects.get(("ConfigMap", name), {}).get("data", {})
                    if not found or mount.get("subPath") not in (None, *found):
                        yield f"{where} {container['name']}: {name} has no {mount.get('subPath')}"
    for claim, count in users.items():
        [mode] = objects["PersistentVolumeClaim", claim]["spec"]["accessModes"]
        if mode == "ReadWriteOnce" and count > 1:
            yield f"{claim}: {count} pods have a claim of one node"


PATH = re.compile(r"(?<![\w.])/(?:private|etc|srv|var/lib|shared)[\w./-]*")


def files(objects: Objects, image: Image) -> Iterator[str]:
    """govray's own: what a command and its settings name lies in a volume of its container, and
    what it writes in one that it may write."""
    for verb, _, container in parts(objects):
        text = " ".join(container["command"])
        for mount in container["volumeMounts"]:
            for (kind, _), each in objects.items():
                if kind == "ConfigMap":
                    text += "\n" + each["data"].get(mount.get("subPath"), "")
        places = {
            each["mountPath"]: each.get("readOnly", False) for each in container["volumeMounts"]
        }
        for path in set(PATH.findall(text.split("kubernetes:")[0])):
            above = [place for place in places if path == place or path.startswith(f"{place}/")]
            if not above:
                yield f"{verb}: nothing lies at {path}"
            elif verb == "attest" and path.startswith(("/srv/", "/var/")) and places[above[0]]:
                yield f"{verb}: it may not write {path}"
            elif verb != "serve" and path.startswith("/shared/") and not places[above[0]]:
                yield f"{verb}: it may write {path}"


def services(objects: Objects, image: Image) -> Iterator[str]:
    """proxy and endpoint controllers: a Service leads to the pods that its selector chooses, at a
    port of theirs by its name (controller/endpointslice, FindPort)."""
    for (kind, name), each in objects.items():
        if kind != "Service":
            continue
        wanted, [port] = each["spec"]["selector"].items(), each["spec"]["ports"]
        heard = [
            one["name"]
            for _, pods in all_pods(objects)
            if wanted <= pods.template["metadata"]["labels"].items()
            for container in pods.spec["containers"]
            for one in container.get("ports", ())
        ]
        if port["targetPort"] not in heard:
            yield f"Service {name}: it leads to no port"
    for named in {settings(objects, "queue.yaml").get("attestor", {}).get("url", "")} - {""}:
        host, _, port = named.removeprefix("https://").partition(":")
        name, namespace, _ = host.split(".")
        found = objects.get(("Service", name))
        if (
            found is None
            or found["metadata"]["namespace"] != namespace
            or found["spec"]["ports"][0]["port"] != int(port)
        ):
            yield f"{named}: no Service has this name"


def connections(objects: Objects, image: Image) -> Iterator[str]:
    """networking/v1: NetworkPolicySpec. What reaches a pod is the union of what its policies let
    in, and needs the other's policies to let it out."""
    found = {verb: pods.template["metadata"]["labels"] for verb, pods, _ in parts(objects)}
    if "attest" not in found or not any(kind == "NetworkPolicy" for kind, _ in objects):
        return
    own = next(pods for verb, pods, _ in parts(objects) if verb == "attest")
    home = objects["Deployment", own.name]["metadata"]["namespace"]
    tenants = settings(objects, "queue.yaml")["kubernetes"]["projects"].values()
    others = {**found["attest"], "app.kubernetes.io/component": "cluster"}
    asked = [(home, found["queue"], True), (home, found["serve"], True), (home, others, False)]
    asked += [(each["namespace"], {}, True) for each in tenants] + [("elsewhere", {}, False)]
    for namespace, labels, wanted in asked:
        comes = _passes(objects, home, found["attest"], "ingress", (namespace, labels, 8686))
        leaves = _passes(objects, namespace, labels, "egress", (home, found["attest"], 8686))
        if (comes and leaves) != wanted:
            yield f"{namespace} {labels}: {'it reaches' if comes else 'no way to'} the attestor"
    for namespace, wanted in (("ingress-nginx", True), ("elsewhere", False)):
        if _passes(objects, home, found["serve"], "ingress", (namespace, {}, 8585)) != wanted:
            yield f"{namespace}: {'no way to' if wanted else 'it reaches'} the service"
    for verb in ("queue", "serve"):
        for port in (53, 443, 5432):
            if not _passes(objects, home, found[verb], "egress", ("elsewhere", {}, port)):
                yield f"{verb}: its port {port} is shut"


def _passes(
    objects: Objects, namespace: str, labels: Mapping[str, str], way: str,
    other: tuple[str, Mapping[str, str], int],
) -> bool:  # fmt: skip
    """Whether the policies of a pod let something through, from or to another's port."""
    own = [
        each["spec"]
        for (kind, _), each in objects.items()
        if kind == "NetworkPolicy"
        and each["metadata"].get("namespace") == namespace
        and _chosen(each["spec"]["podSelector"], labels)
        and way.capitalize() in each["spec"]["policyTypes"]
    ]
    there, whose, port = other
    return not own or any(
        (not rule.get("ports") or port in [each["port"] for each in rule["ports"]])
        and (
            not (peers := rule.get("from", rule.get("to")))
            or any(
                _chosen(each.get("podSelector", {}), whose)
                and (
                    _chosen(each["namespaceSelector"], {"kubernetes.io/metadata.name": there})
                    if "namespaceSelector" in each
                    else there == namespace
                )
                for each in peers
            )
        )
        for spec in own
        for rule in spec.get(way) or ()
    )


def _chosen(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", ())
    )


def networks(objects: Objects, image: Image) -> Iterator[str]:
    """networking/v1: a policy selects pods by labels; one that selects none protects none, and
    a pod that no policy selects is open to all."""
    for where, pods in all_pods(objects):
        labels = pods.template.get("metadata", {}).get("labels", {})
        wanted = [
            each["spec"]["podSelector"].get("matchLabels", {}).items()
            for (kind, _), each in objects.items()
            if kind == "NetworkPolicy"
        ]
        if "store-upgrade" not in where and not any(each <= labels.items() for each in wanted):
            yield f"{where}: any pod may reach it"


Rule = Callable[[Objects, Image], Iterator[str]]
RULES: tuple[Rule, ...] = (
    gates, entrypoints, probes, heads, queued, admitted, flavors, users, secret_files, accounts,
    programs, stores, networks, rights, keys, mounts, files, services, connections,
)  # fmt: skip


def faults(objects: Objects, image: Image) -> list[str]:
    """All that would keep these objects from starting, or leave them open."""
    return [fault for rule in RULES for fault in rule(objects, image)]


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
