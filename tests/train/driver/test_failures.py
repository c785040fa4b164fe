"""Which failures restart a run, which count, and which end it."""

from __future__ import annotations

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

from govray.data.prepared.ray_failures import ray_failures_named
from govray.errors import GovrayError, InfrastructureFailed, Malformed, RankFailed, Refused
from govray.train.driver.failures import MAX_STALLED, classify, decide
from govray.train.run_folder.events import Failed


class Unpickled(Exception):
    """A task's own error that Ray can't send, and replaces by a bare error of its own."""

    def __reduce__(self) -> str:
        raise TypeError("not serializable")


DEAD = WorkerHealthCheckFailedError("worker died", ray.exceptions.RayActorError())
KILLED = ray.exceptions.OutOfMemoryError("Task was killed due to the node running low on memory.")
GLOO = RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]")


@pytest.mark.parametrize(
    ("errors", "kind", "rank"),
    [
        ({1: DEAD}, "infrastructure", 1),
        ({0: InfrastructureFailed("a collective broke off"), 1: DEAD}, "infrastructure", 0),
        ({0: GLOO}, "infrastructure", 0),
        ({0: ray.exceptions.ObjectLostError("00", None, "")}, "infrastructure", 0),
        ({0: KILLED}, "infrastructure", 0),
        ({0: ray.exceptions.RayTaskError("load", "", KILLED)}, "infrastructure", 0),
        ({0: ray.exceptions.UserCodeException("a bug")}, "user", 0),
        ({0: ray.exceptions.RayTaskError("load", "", Unpickled())}, "user", 0),
        ({1: ValueError("a bug")}, "user", 1),
        ({0: GLOO, 1: ValueError("a bug")}, "user", 1),
        ({0: RankFailed("ValueError: a bug", where="rank 1, step 3")}, "user", 0),
        ({0: GovrayError("the checkpoint could not be written")}, "user", 0),
        ({0: InfrastructureFailed("gone"), 1: Malformed("a shard changed")}, "refused", 1),
        ({0: ray.exceptions.RayTaskError("load", "", Refused("no"))}, "refused", 0),
        ({0: ray.exceptions.RayTaskError("load", "", ValueError("no"))}, "user", 0),
    ],
)
def test_the_class_of_a_failure(errors: dict[int, Exception], kind: str, rank: int) -> None:
    failure = classify(errors, where="run x")
    assert (failure.kind, failure.rank) == (kind, rank)


def test_what_ray_kills_while_data_are_prepared_is_no_bug() -> None:
    """It was one: exit 70, and never tried again."""
    for error in (KILLED, ray.exceptions.RayTaskError("pack", "", KILLED)):
        killed = pytest.raises(InfrastructureFailed, match="low on memory")
        with killed, ray_failures_named("preparing data"):
            raise error
    for bug in (ray.exceptions.UserCodeException("a bug"), ValueError("a bug")):
        with pytest.raises(type(bug), match="a bug"), ray_failures_named("preparing data"):
            raise bug
    with pytest.raises(Refused), ray_failures_named("preparing data"):
        raise ray.exceptions.RayTaskError("pack", "", Refused("no"))


def failed(kind: str, step: int = 0) -> Failed:
    return Failed(
        at="2026-11-21T09:30:00Z", attempt=1, failure=kind, step=step, what="", decision="restart"
    )


KINDS = st.sampled_from(["infrastructure", "user"])
PASTS = st.lists(st.builds(failed, KINDS, st.integers(0, 3)), max_size=20)


@given(PASTS, st.integers(-1, 30))
def test_a_refusal_is_never_retried(past: list[Failed], limit: int) -> None:
    failure = classify({0: Refused("no")}, where="run x")
    assert not decide(failure, past, step=0, max_restarts=limit).restart


@given(PASTS, st.integers(-1, 30))
def test_only_the_users_own_failures_count(past: list[Failed], limit: int) -> None:
    failure = classify({0: ValueError("a bug")}, where="run x")
    counted = sum(each.failure == "user" for each in past)
    decision = decide(failure, past, step=0, max_restarts=limit)
    assert decision.restart == (limit < 0 or counted < limit)


@given(PASTS, st.integers(0, 3))
def test_lost_machines_restart_until_no_step_is_gained(past: list[Failed], step: int) -> None:
    in_a_row = 1
    while (
        in_a_row <= len(past)
        and past[-in_a_row].failure == "infrastructure"
        and past[-in_a_row].step >= step
    ):
        in_a_row += 1
    failure = classify({0: DEAD}, where="run x")
    decision = decide(failure, past, step=step, max_restarts=0)
    assert decision.restart == (in_a_row < MAX_STALLED)
    assert decision.restart or f"before step {step} was done" in str(decision.error)
