"""What containers run, run as it stands: the pods of the chart, the services of compose, and what
`ray up` starts on a node. Each under its user, with its variables, its mounts and their modes.

No container is made. Images, networks, probes and limits are not shown.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.chart import PLATFORM, VALUES, rendered
from tests.support.databases import BINARIES
from tests.support.deployment import Deployment
from tests.support.kubernetes_server import TOKEN
from tests.support.machine import (
    IMAGE_ENV,
    PATIENCE_S,
    SECRET,
    Container,
    Machine,
    Running,
    image,
    machine,
)
from tests.support.operator_rules import Objects
from tests.support.tree import ROOT

pytestmark = pytest.mark.story

STORE_KEY = "5a" * 16
"""32 bytes, as the store has it."""
NAMES = ("govray-attestor.ml.svc", "kubernetes.default.svc")
"""What a cluster's names lead to: here, to this machine."""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Running]:
    if not BINARIES:
        pytest.skip("no PostgreSQL here")
    with machine(image) as on:
        on.run('for each in "$@"; do echo "127.0.0.1 $each" >> /etc/hosts; done', *NAMES)
        yield Running(on, tmp_path)


# The chart


CERTIFIED = """
cd "$1"; names=DNS:govray-attestor.ml.svc,DNS:kubernetes.default.svc
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \\
  -subj /CN=cluster -addext "subjectAltName=$names" \\
  -keyout tls.key -out tls.crt 2> /dev/null; cat tls.crt
"""
API = """
import ssl, sys, time
from tests.support.kubernetes_server import kubernetes
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1] + "/tls.crt", sys.argv[1] + "/tls.key")
with kubernetes(port=443, tls=context, namespaces={"ml-research", "ml-product"}) as server:
    seen = 0
    while True:
        time.sleep(0.2)
        server.tick()
        for each in server.requests[seen:]:
            print(*each, flush=True)
            seen += 1
"""
"""The API server of the tests, as the queue's pod finds it."""


class Kubelet:
    """Makes the volumes of pods with the modes that the kubelet gives, and runs their containers.

    Folders that are made are 0777, and a group's (volume/emptydir/empty_dir.go, setupDir). A group
    gets a claim of one node, and secrets, to read (volume/volume_linux.go, changeFilePermission).
    Files of secrets and settings are links (volume/util/atomic_writer.go).
    """

    def __init__(self, running: Running, objects: Objects, secrets: dict[str, dict[str, str]]):
        self.running, self.objects, self.secrets = running, objects, secrets

    def begin(self, name: str) -> None:
        """Make a pod's volumes, and run what comes before its container."""
        spec = self._spec(name)
        group = str(spec["securityContext"]["fsGroup"])
        for each in spec["volumes"]:
            self._volume(name, each, group)
        if spec["automountServiceAccountToken"]:
            files = {"token": TOKEN, "ca.crt": self.ca}
            self._files(f"/pods/{name}/account", files, "0640", group)
        for each in spec["initContainers"]:
            self.running.ends(name, *self._contained(name, each))

    def start(self, name: str) -> None:
        [container] = self._spec(name)["containers"]
        self.running.start(name, *self._contained(name, container))

    def _spec(self, name: str) -> Any:
        return self.objects["Deployment", f"govray-{name}"]["spec"]["template"]["spec"]

    def _contained(self, name: str, container: Any) -> tuple[Container, list[str]]:
        spec = self._spec(name)
        places = {each["name"]: self._place(name, each) for each in spec["volumes"]}
        mounts = [
            (
                "/".join(filter(None, (places[each["name"]], each.get("subPath")))),
                each["mountPath"],
                "ro" if each.get("readOnly") else "rw",
            )
            for each in container["volumeMounts"]
        ]
        if spec["automountServiceAccountToken"]:
            account = "/var/run/secrets/kubernetes.io/serviceaccount"
            mounts.append((f"/pods/{name}/account", account, "ro"))
        env = IMAGE_ENV | {each["name"]: each["value"] for each in container.get("env", ())}
        words = [*container["command"], *container.get("args", ())]
        return Container(str(spec["securityContext"]["runAsUser"]), mounts, env), words

    @property
    def ca(self) -> str:
        found: str = self.objects["ConfigMap", "govray-authority"]["data"]["ca.crt"]
        return found

    def _place(self, pod: str, volume: Any) -> str:
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        return f"/claims/{claim}" if claim else f"/pods/{pod}/{volume['name']}"

    def _volume(self, pod: str, volume: Any, group: str) -> None:
        path = self._place(pod, volume)
        if "secret" in volume:
            self._files(path, self.secrets[volume["secret"]["secretName"]], "0440", group)
        elif "configMap" in volume:
            data = self.objects["ConfigMap", volume["configMap"]["name"]]["data"]
            self._files(path, data, "0644", group)
        elif "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            if ("PersistentVolumeClaim", claim) in self.objects:  # of one node, so a group's
                script = 'mkdir -p "$1"; chown "root:$2" "$1"; chmod 2775 "$1"'
                self.running.on.run(script, path, group)
        else:
            script = 'mkdir -p "$1"; chown "root:$2" "$1"; chmod 2777 "$1"'
            self.running.on.run(script, path, group)

    def _files(self, path: str, data: dict[str, str], mode: str, group: str) -> None:
        for name, text in data.items():
            self.running.on.put(f"{path}/..data/{name}", f"root:{group}", mode, text)
            self.running.on.run('ln -s "..data/$2" "$1/$2"', path, name)
        self.running.on.run('chown "root:$2" "$1" "$1/..data"; chmod 2777 "$1"', path, group)


def test_the_pods_of_the_chart_start_as_they_stand(here: Running) -> None:
    here.database()
    made = Deployment(here.folder / "made")
    here.on.run("mkdir -m 0755 /tmp/tls")
    certificate = here.on.run(CERTIFIED, "/tmp/tls")
    platform = {"enabled": True, "authority": certificate, "trustRoot": made.root.read_text()}
    objects = rendered({**PLATFORM, "platform": platform})
    secrets = {
        "govray-operator-key": {"operator.pem": made.key.read_text()},
        "govray-attestor-token": {"token": SECRET},
        "govray-attestor-tls": {
            "tls.crt": certificate, "tls.key": here.on.run("cat /tmp/tls/tls.key"),
        },
        "govray-store": {"key": STORE_KEY, "pgpass": f"db:5432:*:govray:{SECRET}\n"},
    }  # fmt: skip
    # What docs/queue.md asks of the operator: folders of a share.
    here.on.run(
        "mkdir -p /claims/shared/runs/prepared /claims/govray-models;"
        "chmod 1777 /claims/shared/runs; chown 1002:1002 /claims/govray-models;"
        "chown 1002:1002 /claims/shared/runs/prepared"
    )
    api = ["/opt/govray/bin/python", "-c", API, "/tmp/tls"]
    with (here.folder / "api.log").open("ab") as log:
        words = here.on.words("root", api, {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)})
        here.found["api"] = subprocess.Popen(words, stdout=log, stderr=log)
    kubelet = Kubelet(here, objects, secrets)

    # Each pod has ports of its own. Here all share them, so no container runs yet.
    for name in ("attestor", "service", "queue"):
        kubelet.begin(name)
    kubelet.start("attestor")
    here.until("attestor", here.answers("https://govray-attestor.ml.svc:8686/v1/register", 404))
    kubelet.start("service")
    here.until("service", here.answers("http://127.0.0.1:8585/v1/ready"))
    kubelet.start("queue")
    here.until("queue", here.leased)
    listed = "GET /apis/ray.io/v1/namespaces/ml-research/rayjobs?"
    here.until("queue", lambda: listed in here.said("api"))

    # A person submits. The service tells the attestor, the queue too, and a job is made.
    store = {"GOVRAY_STORE": VALUES["service"]["store"], "GOVRAY_STORE_KEY": "/tmp/p/key"}
    here.on.put("/tmp/p/key", "1001", "0600", STORE_KEY)
    here.on.put("/tmp/p/pgpass", "1001", "0600", f"db:5432:*:govray:{SECRET}\n")
    operator = Container(
        "1001", env=IMAGE_ENV | store | {"PGPASSFILE": "/tmp/p/pgpass", "HOME": "/tmp"}
    )
    new = ["govray", "token", "new", "--user", "ada", "--role", "engineer", "--scope", "write"]
    done = subprocess.run(
        here.on.contained(operator, new), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    asked = {"GOVRAY_SERVER": "http://127.0.0.1:8585", "GOVRAY_TOKEN": done.stdout.strip()}
    person = Container("1003", env=IMAGE_ENV | asked | {"HOME": "/tmp"})
    submit = ["train", "jobs/train.yaml", "--project", "research", "--pool", "cpu"]
    here.ends("person", person, ["govray", *submit, "--set", "storage_path=/shared/runs"])
    here.until("queue", lambda: "PATCH /apis/ray.io/v1/namespaces/ml-research" in here.said("api"))
    assert here.sql("SELECT state, why FROM queueentry") == "RUNNING|"
    assert "POST /api/v1/namespaces/ml-research/secrets" in here.said("api")


# Compose

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
OURS = ("service", "alerts", "attestor", "queue")
GIVEN = {"${GOVRAY_RUNS}": "/c/runs", "${GOVRAY_RUNS:?the folder of the runs}": "/c/runs"}


def contained(on: Machine, name: str) -> tuple[Container, list[str]]:
    """A service of compose as a container, and its command.

    Its files' secrets keep owner and mode. A named volume begins as the image's folder is, or as
    one of root's.
    """
    service = COMPOSE["services"][name]
    user = service.get("user", "1000")
    mounts = []
    for each in service["volumes"]:
        for variable, value in GIVEN.items():
            each = each.replace(variable, value)
        source, target, *mode = each.split(":")
        if source.startswith("."):
            source = str((ROOT / "deploy" / source).resolve())
        elif not source.startswith("/"):
            source, script = f"/c/volumes/{source}", 'mkdir -p "$1" "$2"; cp -an "$2/." "$1"'
            on.run(f'{script}; chown --reference "$2" "$1"', source, target)
        mounts.append((source, target, *mode))
    for each in service["secrets"]:
        source = each["source"] if isinstance(each, dict) else each
        target = each["target"] if isinstance(each, dict) else f"/run/secrets/{each}"
        mounts.append((f"/c/secrets/{source}", target, "ro"))
    words = [each.replace("$$", "$") for each in service["command"]]
    env = IMAGE_ENV | service["environment"] | {"HOME": "/tmp"}
    return Container(user, mounts, env, service["working_dir"]), words


def test_the_services_of_compose_start_as_they_stand(here: Running) -> None:
    here.database()
    made = Deployment(here.folder / "made")
    for name, (owner, text) in {
        "pgpass": ("1000", f"db:5432:*:govray:{SECRET}\n"),
        "store-key": ("1000", STORE_KEY),
        "attestor-token": ("1000", SECRET),
        "operator-attestor-token": ("1002", SECRET),
        "operator-key": ("1002", made.key.read_text()),
    }.items():
        here.on.put(f"/c/secrets/{name}", owner, "0600", text)
    here.on.put(str(ROOT / "policies/root.json"), "root", "0644", made.root.read_text())
    here.on.run("mkdir -m 1777 /c/runs; rm -rf /etc/govray")
    assert {*OURS} == {
        name for name, each in COMPOSE["services"].items() if "GOVRAY_IMAGE" in each["image"]
    }
    for name, found in (
        ("attestor", lambda: "8686" in here.said("attestor")),
        ("service", here.answers("http://127.0.0.1:8585/v1/ready")),
        ("alerts", lambda: here.said("alerts") != ""),
        ("queue", here.leased),
    ):
        here.start(name, *contained(here.on, name))
        here.until(name, found)


# `ray up`

CLUSTER: dict[str, Any] = yaml.safe_load((ROOT / "cluster.yaml").read_text())


def test_what_ray_up_starts_on_head_and_worker(here: Running) -> None:
    """As Ray runs it: by a login shell of the account that it logs into. Its own file of settings
    names a provider that is a cloud's; here, one that knows no other machine."""
    user = CLUSTER["auth"]["ssh_user"]
    here.on.run('useradd --create-home --uid 1500 --shell /bin/bash "$1"', user)
    home = f"/home/{user}"
    here.on.put(f"{home}/.ray/auth_token", user, "0600", SECRET)
    known = {"type": "local", "head_ip": "127.0.0.1", "worker_ips": []}
    settings = CLUSTER | {"provider": known}
    here.on.put(f"{home}/ray_bootstrap_config.yaml", user, "0600", yaml.safe_dump(settings))
    here.on.run('chown -R "$1" "$2"', user, home)
    for name, more in (("head", ""), ("worker", "export RAY_HEAD_IP=127.0.0.1; ")):
        container = Container(
            "1500", env={"HOME": home, "USER": user, "PATH": IMAGE_ENV["PATH"]}, folder=home
        )
        commands = CLUSTER[f"{name}_start_ray_commands"]
        assert commands[0] == "ray stop"
        for command in commands if name == "head" else commands[1:]:  # the head runs here
            here.ends(name, container, ["bash", "--login", "-c", f"{more}{command}"])
        assert "Ray runtime started" in here.said(name)
    here.until("head", here.answers("http://127.0.0.1:8265/api/version", 401))
    token = f"curl -s -H 'Authorization: Bearer {SECRET}' http://127.0.0.1:8265"
    here.until("head", lambda: "version" in here.on.run(f"{token}/api/version || true"))
    alive = f"{token}/nodes?view=summary || true"
    here.until("worker", lambda: here.on.run(alive).count('"ALIVE"') == 2)
