"""``queue.yaml``: which cluster, whose runs, how many slots, for whom. Read strictly.

The token of a cluster is not in the file. It is in a file of mode 0600 that this one names, or in
the variable that Ray itself reads, ``RAY_AUTH_TOKEN``. On Kubernetes a pod has it. It is sent with
each request, so only over https or within this machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field

from govray.errors import UsageError
from govray.governance.formats.strict_yaml import Source, read_yaml_file
from govray.governance.submission.http_exchange import is_loopback
from govray.governance.submission.register_client import RegisterDoor
from govray.governance.submission.submission import WORD
from govray.governance.submission.token_file import check_private, read_token
from govray.platform.queue.placement import Slot
from govray.platform.queue.queue_order import ProjectLimit, SlotLimits
from govray.platform.queue.ray_job import FileSection, Pods, Room, Tenant
from govray.platform.queue.reconcile import Retries
from govray.storage.place import place

TOKEN_VARIABLE = "RAY_AUTH_TOKEN"  # noqa: S105  a name

IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod has the token of its account, and the authority of the API server."""

Name = Annotated[str, Field(pattern=WORD)]
Slots = Annotated[int, Field(ge=1, le=1_000_000)]
PathText = Annotated[Path, BeforeValidator(lambda text: Path(text) if type(text) is str else text)]


class Pool(Room):
    """Slots that are alike. A slot is room for one worker, or one task."""

    slots: Slots = Field(description="Workers that the pool has room for.")


class KubernetesSection(Pods):
    """How jobs run on Kubernetes. ``address`` is then the API server's."""

    projects: dict[Name, Tenant] = Field(min_length=1, description="Projects, by name.")
    ca_file: str | None = Field(
        default=None, description="Authority of the API server; default: the pod's own."
    )

    def shared(self) -> str | None:
        """What two projects have in common, if anything."""
        for what in ("namespace", "user"):
            found = [getattr(each, what) for each in self.projects.values()]
            if len(set(found)) < len(found):
                return what
        return None


class AttestorSection(RegisterDoor):
    """The register, and what the attestor keeps, where that can be looked at."""

    settings_file: str | None = Field(
        default=None, description="Its own file, attestor.yaml, where it runs on this machine."
    )

    @property
    def is_here(self) -> bool:
        """Whether it is reached by loopback, so the attestor runs on this machine."""
        return is_loopback(urlsplit(self.url).hostname or "")


class ProjectShare(FileSection):
    """What a project gets."""

    share: float = Field(default=1.0, gt=0, le=1e6, description="Its weight beside other projects.")
    max_slots: Slots | dict[Name, Slots] | None = Field(
        default=None,
        description="The most that it holds in one pool: one number, or one for each named pool.",
    )

    def limit(self) -> ProjectLimit:
        if isinstance(self.max_slots, Mapping):
            return ProjectLimit(share=self.share, in_pool=self.max_slots)
        return ProjectLimit(share=self.share, max_slots=self.max_slots)


class Queue(FileSection):
    """The file."""

    address: Annotated[str, AfterValidator(lambda text: text.rstrip("/"))] = Field(
        pattern=r"^https?://[^\s/@]+/?$",
        description="Ray's dashboard on the head node, or the API server of Kubernetes.",
    )
    storage: str = Field(min_length=1, description="Where runs lie: a path, or a URL.")
    store: str = Field(min_length=1, description="The store's URL. It holds the queue.")
    pools: dict[Name, Pool] = Field(min_length=1, description="Pools, by name.")
    projects: dict[Name, ProjectShare] = Field(
        default_factory=dict, description="Projects, by name."
    )
    others: ProjectShare = Field(
        default_factory=ProjectShare, description="What a project gets that is not named."
    )
    token_file: Annotated[PathText, AfterValidator(Path.expanduser)] | None = Field(
        default=None, description="A file of mode 0600 with the cluster's token."
    )
    working_dir: PathText | None = Field(
        default=None, description="What a run gets that was submitted without a folder."
    )
    jobs_account: str | None = Field(
        default=None,
        description="Whom Ray and its jobs run under: a name, or UID:GID. Default: the queue's.",
    )
    kubernetes: KubernetesSection | None = Field(
        default=None, description="How jobs run on Kubernetes, in the place of one Ray cluster."
    )
    retries: Retries = Field(default_factory=Retries)
    attestor: AttestorSection | None = Field(
        default=None, description="Where attempts are registered, if an attestor signs."
    )

    @property
    def limits(self) -> SlotLimits:
        """The slots of each pool, and what projects may hold."""
        return SlotLimits(
            pools={name: pool.slots for name, pool in self.pools.items()},
            projects={name: project.limit() for name, project in self.projects.items()},
            others=self.others.limit(),
        )

    @property
    def slots(self) -> dict[str, Slot]:
        """A slot of each pool, by name."""
        return {name: pool.slot() for name, pool in self.pools.items()}

    def token(self) -> str | None:
        """The cluster's token, read now; None where it has none. Raises `Refused`: others than its
        owner may read it, or it would be sent in the clear."""
        if self.kubernetes is not None and self.token_file is None:
            self.check_address("the queue's pod")
            return (IN_POD / "token").read_text("ascii").strip()  # the kubelet gives it its mode
        if self.token_file is None:
            found = os.environ.get(TOKEN_VARIABLE) or None
            if found is not None:
                self.check_address(TOKEN_VARIABLE)
            return found
        self.check_address("token_file")
        return read_token(self.token_file, "the cluster's token")

    def ca_file(self) -> Path | None:
        """The authority of the API server's certificate; None: those that this machine trusts."""
        named = self.kubernetes.ca_file if self.kubernetes else None
        here = IN_POD / "ca.crt"
        return Path(named) if named else here if here.exists() else None

    def check_address(self, source: str) -> None:
        """Return if nobody on the way to the dashboard reads what is sent there."""
        do = "run this on the head node with http://127.0.0.1:8265"
        check_private(self.address, source, where="address", do=do)


def read_queue(path: Path) -> Queue:
    """What the file says. Raises `Refused`: it names a token that would be sent in the clear."""
    do = "See docs/queue.md, and the example deploy/queue.yaml"
    source = read_yaml_file(path, do=do)
    try:
        queue = Queue.model_validate(source.value, strict=True)
    except pydantic.ValidationError as error:
        raise source.wrong(error, do=do) from None
    for name, project in queue.projects.items():
        if isinstance(project.max_slots, Mapping):
            for pool in project.max_slots.keys() - queue.pools.keys():
                raise UsageError(
                    f"there is no pool {pool!r}",
                    where=source.where("projects", name, "max_slots", pool),
                    do=f"Known are: {', '.join(sorted(queue.pools))}",
                )
    try:
        place(queue.storage)
    except ValueError as error:
        raise UsageError(str(error), where=source.where("storage"), do=do) from None
    if queue.kubernetes is not None:
        _check_kubernetes(queue, queue.kubernetes, source, do)
    if queue.token_file is not None:
        queue.check_address("token_file")
    if queue.attestor is not None:
        queue.attestor.check()
    return queue


def _check_kubernetes(queue: Queue, section: KubernetesSection, source: Source, do: str) -> None:
    """Raise `UsageError` where jobs could not start, or would not be kept apart by project."""
    shared = section.shared()
    rooms: dict[tuple[str, ...], Room] = {
        ("pools", name): each for name, each in queue.pools.items()
    }
    rooms["kubernetes", "head"] = section.head
    # KubeRay takes a limit of 0 for none (v1.7.0, common/pod.go, generateRayStartCommand).
    small = [path for path, each in rooms.items() if not (each.cpus and each.memory_gb)]
    if queue.attestor is None:
        what, where = "no attestor is named, and pods get no key", source.where("kubernetes")
    elif shared is not None:
        what = f"two projects have one {shared}"
        where = source.where("kubernetes", "projects")
    elif small:
        what = f"the pods of {'.'.join(small[0])} need cpus and memory_gb: Kueue counts both"
        where = source.where(*small[0])
    elif queue.working_dir is not None and not queue.working_dir.is_absolute():
        what, where = "it is a folder of the image", source.where("working_dir")
    else:
        return
    raise UsageError(what, where=where, do=do)
