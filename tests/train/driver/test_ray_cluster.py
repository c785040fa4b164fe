"""A cluster that can't be had is an error that says which, and what to do."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import pytest
import ray

from govray.errors import InfrastructureFailed
from govray.train.driver import ray_cluster
from govray.train.driver.ray_cluster import ray_running, start_ray


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `ray.init` was asked for; it fails as on a machine that is too busy."""
    calls: list[dict[str, Any]] = []

    def init(**arguments: Any) -> None:
        calls.append(arguments)
        raise Exception("no answer\nwithin 30 s")  # the class that Ray raises

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return calls


def test_a_cluster_that_does_not_start_here(asked: list[dict[str, Any]]) -> None:
    with pytest.raises(InfrastructureFailed, match="Ray does not start here: no answer") as told:
        start_ray(num_cpus=2)
    assert told.value.where == "this machine"
    # Never one that somebody else started.
    assert (asked[0]["address"], asked[0]["num_cpus"]) == ("local", 2)


@pytest.mark.parametrize("at_a_fork", [False, True])
def test_an_interrupt_is_heeded_and_not_in_what_runs_at_a_fork(
    at_a_fork: bool, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python ignores an error in what `logging` runs at a fork, and the lock stays held."""
    went_on: list[bool] = []

    def interrupted(send: Callable[[], None]) -> None:
        send()

    def init(**arguments: Any) -> None:
        module = vars(logging) if at_a_fork else globals()
        FunctionType(interrupted.__code__, module)(partial(signal.raise_signal, signal.SIGINT))
        went_on.append(True)
        threading.Event().wait(60)

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(KeyboardInterrupt):
        start_ray("local")
    assert went_on == [True] * at_a_fork


@pytest.mark.parametrize("by_environment", [False, True])
def test_a_cluster_that_cannot_be_joined(
    asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, by_environment: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # something listens, and it is no Ray
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if by_environment:
            monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(InfrastructureFailed, match="the cluster cannot be joined") as told:
            start_ray(None if by_environment else address)
    assert told.value.where == address
    # Ray reads its own variable, and refuses a number of CPUs for a cluster that is there.
    assert asked[0]["address"] == (None if by_environment else address)
    assert asked[0]["num_cpus"] is None


def test_an_address_where_nothing_listens_is_refused_before_ray_is_asked(
    asked: list[dict[str, Any]],
) -> None:
    """Ray asks it again and again, and once went on for ten minutes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    for each in (address, "head.invalid:6379"):
        with pytest.raises(InfrastructureFailed, match="cannot be joined") as told:
            start_ray(each)
        assert told.value.where == each
    assert asked == []


@pytest.mark.parametrize("there", [False, True])
def test_a_cluster_is_left_unless_it_was_there(
    there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: there)
    monkeypatch.setattr(ray, "shutdown", lambda: told.append("left"))
    monkeypatch.setattr(ray_cluster, "start_ray", lambda **_: told.append("started"))
    with pytest.raises(ZeroDivisionError), ray_running():
        told.append(str(1 // (len(told) - 1)))  # after the start, and an error all the same
    assert told == ["started"] + ["left"] * (not there)
