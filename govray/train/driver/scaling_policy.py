"""How many workers a run has, and when Ray starts them: Ray Train's policies with some changes.

``num_workers: [min, max]`` makes a run elastic. When a worker or its node is lost, Ray restarts
with as many workers as fit. When there is room for more, Ray restarts with more. A restart resumes
from the latest commit, and the batch plan doesn't depend on the number of workers. What Ray's
policy does, and `Elastic` changes:

* It tries to start workers on a lost node until health checks notice, which costs a timeout each
  time. `Elastic` waits while a node that counts as alive doesn't answer.
* It reads a view of the cluster that is up to 20 s old and may still list a lost node. `Elastic`
  has the view refreshed.
* It ends healthy workers to start more and loses their work since the latest commit. `Elastic` asks
  them to commit first (`govray.train.run_folder.requests`).
* It gives every CPU to workers, so tasks that read data wait for ever. `Elastic` leaves room for
  one such task, unless that would go below the minimum.
* It knows nothing of log policies. `Elastic` counts on no node that one has excluded.
* It knows nothing of a queue. `Elastic` has no more workers than a queue allows, from one look to
  the next, and answers once it has given the others back (`WorkerLimit`).

Neither policy starts anything for a job that has ended. When the driver of a search is killed, Ray
ends the workers of a trial before the trial, whose controller would start others. Where Ray has
counted the job as ended, it never takes back the room that is reserved then. An autoscaled node
would stay for ever.

Source: `ElasticScalingPolicy` and `FixedScalingPolicy` of Ray 2.60. Their private parts are used
here; a test compares their names with the installed Ray.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
import ray.train
from ray._private.state import state as global_state
from ray.train.v2._internal.execution.scaling_policy.autoscaling_coordinator_client import (
    AUTOSCALING_REQUESTS_GET_TIMEOUT_S,
    AUTOSCALING_REQUESTS_INTERVAL_S,
)
from ray.train.v2._internal.execution.scaling_policy.elastic import ElasticScalingPolicy
from ray.train.v2._internal.execution.scaling_policy.fixed import FixedScalingPolicy
from ray.train.v2._internal.execution.scaling_policy.scaling_policy import (
    NoopDecision,
    ResizeDecision,
    ScalingDecision,
)
from ray.train.v2._internal.util import time_monotonic

from govray.data.prepared.partition import READ_CPUS
from govray.errors import Malformed
from govray.governance.submission.worker_cap import ANSWER, REQUEST, WorkerCap, read_cap, write_cap
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place
from govray.train.driver.ray_cluster import begun_here, nodes_alive
from govray.train.run_folder import events
from govray.train.run_folder.clock import now
from govray.train.run_folder.requests import COMMITTED, RESIZE, STORE_S

PATIENCE_S = 30.0
"""Seconds to wait for the cluster to notice that a node is gone, before trying all the same."""

Resources = Mapping[str, float]

_ACCOUNT = "AutoscalingCoordinator"
"""Name and namespace of Ray's actor that knows what runs asked for."""


def policy_of(scaling: Any, run_folder: Place) -> FixedScalingPolicy | ElasticScalingPolicy:
    """The policy for a configuration: `Elastic` if ``num_workers`` is a pair."""
    return Elastic(scaling, run_folder) if scaling.elasticity_enabled else Fixed(scaling)


class Fixed(FixedScalingPolicy):
    """Ray's policy for a number of workers, which waits for nobody.

    What it asks for tells elastic runs what they can't have. An actor of Ray keeps account of that.
    Where it is not there yet, no elastic run is either, so nothing is asked. A request would start
    it, for ever and on this node: that of a trial would never go. A cluster that began with this
    process needs no account.
    """

    _asked = -math.inf

    def make_decision_for_non_running_worker_group(self) -> ScalingDecision:
        """Start all workers."""
        if _job_ended():
            return NoopDecision()
        return super().make_decision_for_non_running_worker_group()

    def _send_resource_request(self) -> None:
        self._asked = time_monotonic()
        if begun_here() or not _account_is_kept():
            return
        send = super()._send_resource_request
        threading.Thread(target=send, name="govray-request", daemon=True).start()

    def _maybe_send_resource_request(self) -> None:
        if time_monotonic() - self._asked >= AUTOSCALING_REQUESTS_INTERVAL_S:
            self._send_resource_request()

    def _cancel_resource_request(self) -> None:
        if not begun_here() and _account_is_kept():
            super()._cancel_resource_request()


def _account_is_kept() -> bool:
    """Whether the cluster has the actor yet."""
    try:
        ray.get_actor(_ACCOUNT, namespace=_ACCOUNT)
    except ValueError:
        return False
    return True


class Elastic(ElasticScalingPolicy):
    """Ray's elastic policy, with the changes that the module lists.

    Args:
        scaling_config: With a pair as ``num_workers``.
        run_folder: Where the request to commit before a resize is written, and where a queue says
            how many workers it allows.
    """

    def __init__(self, scaling_config: ray.train.ScalingConfig, run_folder: Place) -> None:
        super().__init__(scaling_config)  # type: ignore[arg-type]  # of v1
        self._run_folder = run_folder
        self._unsure_since: float | None = None
        self._wanted: ResizeDecision | None = None
        self._limit = WorkerLimit(run_folder)
        self._ran = True
        self._excluded: frozenset[str] = frozenset()
        """The nodes that log policies had excluded when the workers started."""

    def make_decision_for_non_running_worker_group(self) -> ScalingDecision:
        """Start as many workers as fit, once the cluster has noticed which nodes are gone."""
        if _job_ended():
            return NoopDecision()
        self._wanted = None
        self._clear_request()
        self._look_for_limit()
        if self._ran:
            self._ran, self._excluded = False, events.excluded_nodes(self._run_folder)
        if all(_answers(node) for node in nodes_alive()):
            self._unsure_since = None
        else:
            self._unsure_since = self._unsure_since or time_monotonic()
            if time_monotonic() - self._unsure_since < PATIENCE_S:
                return NoopDecision()
        return super().make_decision_for_non_running_worker_group()

    def make_decision_for_running_worker_group(
        self, worker_group_state: Any, worker_group_status: Any
    ) -> ScalingDecision:
        """Replace the workers once they have committed: there is room for more, or too many run."""
        self._ran = True
        self._look_for_limit()
        if self._wanted is not None:
            self._maybe_send_resource_request()
            if not COMMITTED.made(self._run_folder):
                return NoopDecision()
            self._clear_request()
            wanted, self._wanted = self._wanted, None
            # The limit may have changed while they committed.
            return self._get_resize_decision(min(wanted.num_workers, self._most()))
        if worker_group_state.num_workers > self._most():
            self._maybe_send_resource_request()
            decision: ScalingDecision = self._get_resize_decision(self._most())
        else:
            self._limit.obeyed(worker_group_state.num_workers)
            decision = super().make_decision_for_running_worker_group(
                worker_group_state, worker_group_status
            )
        if not isinstance(decision, ResizeDecision):
            return decision
        self._wanted = decision
        events.append(
            self._run_folder,
            events.ResizeWanted(
                at=now(), before=worker_group_state.num_workers, after=decision.num_workers
            ),
        )
        RESIZE.make(self._run_folder)
        return NoopDecision()

    def _clear_request(self) -> None:
        for each in (RESIZE, COMMITTED):
            each.clear(self._run_folder)

    def _look_for_limit(self) -> None:
        """Look how many workers the queue allows. If it changed, ask Ray for as many at once.
        Another elastic run counts on what this one asks for no longer."""
        if self._limit.look() and self._coordinator_client is not None:
            self._send_resource_request()

    def _most(self) -> int:
        scaling = self.scaling_config
        return self._limit.most(scaling.min_workers, scaling.max_workers)

    def _get_num_workers_for_resource_request(self) -> int:
        return self._most()

    def _get_reserved_resources(self) -> Any:
        age = time_monotonic() - self._latest_reserved_resources_query_time
        if age >= self.GET_RESERVED_RESOURCES_INTERVAL_S:
            # An error here happens again below, where Ray's policy reports it.
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(
                    self._autoscaling_coordinator.get_reserved_resources.remote(
                        self._requester_id, recompute=True
                    ),
                    timeout=AUTOSCALING_REQUESTS_GET_TIMEOUT_S,
                )
        return super()._get_reserved_resources()

    def _count_possible_workers(self, reserved_resources: dict[str, dict[str, float]]) -> int:
        possible = min(self._room(reserved_resources), self._most())
        alive = [node for node in nodes_alive() if node["NodeID"] not in self._excluded]
        nodes = [node["Resources"] for node in alive]
        worker = self.scaling_config._resources_per_worker_not_none
        beside = workers_beside_a_reader(nodes, worker)
        return min(possible, max(beside, self.scaling_config.min_workers))

    def _room(self, reserved_resources: dict[str, dict[str, float]]) -> int:
        held = {node: of for node, of in reserved_resources.items() if node not in self._excluded}
        return int(super()._count_possible_workers(held))


def workers_beside_a_reader(nodes: Sequence[Resources], worker: Resources) -> int:
    """How many workers fit on nodes if one task that reads data must fit too."""
    alone = [_fitting(node, worker) for node in nodes]
    beside = [
        all_of_it - _fitting({**node, "CPU": node.get("CPU", 0.0) - READ_CPUS}, worker)
        for node, all_of_it in zip(nodes, alone, strict=True)
        if node.get("CPU", 0.0) >= READ_CPUS
    ]
    return sum(alone) - min(beside, default=0)


def _fitting(node: Resources, worker: Resources) -> int:
    return int(min(node.get(name, 0.0) // need for name, need in worker.items() if need > 0))


def _job_ended() -> bool:
    """Whether the cluster counts this process's job as ended: its driver is gone."""
    own = ray.get_runtime_context().get_job_id()
    return any(job["JobID"] == own and job["IsDead"] for job in global_state.job_table())


def _answers(node: Mapping[str, Any]) -> bool:
    """Whether the node's raylet accepts a connection."""
    try:
        address = (node["NodeManagerAddress"], node["NodeManagerPort"])
        socket.create_connection(address, timeout=1.0).close()
    except OSError:
        return False
    return True


# The limit that a queue has set for a run's workers, as the run's controller sees it.
#
# The file is `govray.governance.submission.worker_cap`. One that is no such file changes nothing:
# the limit before it goes on, and the event log says so, once for each. One that is gone changes
# nothing either. To lift a limit is to write a higher one.


class WorkerLimit:
    """The latest limit that could be read."""

    def __init__(self, run_folder: Place) -> None:
        self._folder = run_folder
        self._every = STORE_S if isinstance(run_folder, BucketPath) else 0.0
        self._looked = -math.inf
        self._cap: WorkerCap | None = None
        self._answered: WorkerCap | None = None
        self._ignored: str | None = None

    def look(self) -> bool:
        """Look again, if it is time; True if the limit has changed."""
        moment = time.monotonic()
        if moment - self._looked < self._every:
            return False
        self._looked = moment
        try:
            found = read_cap(self._folder, REQUEST)
        except Malformed as error:
            if self._ignored != error.what:
                self._ignored = error.what
                events.append(self._folder, events.LimitIgnored(at=now(), what=error.what[:4096]))
            return False
        except OSError:
            return False
        self._ignored = None
        if found is None or found == self._cap:
            return False
        self._cap = found
        events.append(self._folder, events.WorkersLimited(at=now(), most=found.most))
        return True

    def most(self, least: int, most: int) -> int:
        """How many workers the run may have at most.
        ``least``: of the run itself. No limit goes below it."""
        return most if self._cap is None else max(least, min(self._cap.most, most))

    def obeyed(self, workers: int) -> None:
        """Answer the queue that no more workers run than it allows.
        The caller will start no more either. A limit that ``workers`` are above has no answer."""
        cap = self._cap
        if cap is None or cap == self._answered or workers > cap.most:
            return
        with contextlib.suppress(OSError):  # then the next call answers
            write_cap(self._folder, ANSWER, cap)
            self._answered = cap
