"""Settings of all tests, marks that come by themselves, and how ``pytest -n 2`` deals tests."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.support.ranks import four_ranks, one_rank, two_ranks

if TYPE_CHECKING:
    from govray.storage.bucket_path import BucketPath
    from tests.support.forked_workers import Forked
    from tests.support.object_server import Server

__all__ = ["four_ranks", "one_rank", "two_ranks"]

pytest_plugins = ["tests.support.answered", "tests.support.stories"]

# The time of one example says nothing on a machine that other work shares. Examples follow from
# the test alone, so a commit that is green stays green.
settings.register_profile("govray", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("govray")

# Nothing goes while tests are collected; `pytest_collection_finish` turns it on.
gc.disable()

# Ray's workers yield to all else by default: the lane of Ray would wait for the other one.
os.environ.setdefault("RAY_worker_niceness", "0")

ON_RAY = (
    "tests/benchmarks/test_benchmarks_run.py::test_reading_runs",
    "tests/benchmarks/test_benchmarks_run.py::test_the_step_over_jax",
    "tests/cli/test_demo.py",
    "tests/cli/test_pages_that_train.py",
    "tests/data/sources/test_parallel_split.py",
    "tests/data/test_admission.py",
    "tests/data/test_prepared_on_store.py",
    "tests/data/test_step_reader.py",
    "tests/faults/test_fault_controls.py",
    "tests/faults/test_fault_schedules.py",
    "tests/platform/inference/test_batch.py::test_prompts_are_answered",
    "tests/platform/inference/test_serve_model.py::test_a_model_answers",
    "tests/platform/queue/test_queue_on_cluster.py",
    "tests/platform/queue/test_tasks_on_cluster.py",
    "tests/platform/queue/test_two_projects_on_cluster.py",
    "tests/platform/service/test_serve_app.py",
    "tests/platform/test_accounts.py::test_ray_",
    "tests/train/driver/test_autoscaled_run.py",
    "tests/train/driver/test_driver_key.py::test_no_process",
    "tests/train/driver/test_elastic.py",
    "tests/train/driver/test_everything_on_a_store.py",
    "tests/train/driver/test_giving_back_on_cluster.py",
    "tests/train/jax/test_jax_run.py::test_two_workers",
    "tests/train/inputs/test_gating.py::test_a_run_goes_on_without_what_ends",
    "tests/train/integrations/test_integrations.py::test_a_hosts_script_ends_with_the_bytes",
    "tests/train/driver/test_kept_output.py::test_a_run_keeps",
    "tests/train/driver/test_kept_output.py::test_attempts_leave",
    "tests/train/driver/test_lifecycle.py",
    "tests/train/worker/test_memorizing_run.py::test_a_planted_corpus_is_rolled_back",
    "tests/train/driver/test_storage_on_cluster.py",
    "tests/train/worker/test_dataset_shards.py",
    "tests/train/watching/test_metrics_endpoint.py",
    "tests/tune/test_search_on_cluster.py",
)
"""Tests that start a Ray cluster, here or in a process of their own. They get the mark ``ray``."""

OWN_PORTS = (
    "tests/platform/queue/test_queue_on_cluster.py",
    "tests/platform/queue/test_tasks_on_cluster.py",
    "tests/platform/queue/test_two_projects_on_cluster.py",
    "tests/platform/test_accounts.py::test_ray_",
    "tests/train/driver/test_autoscaled_run.py",
)
"""Of these, those whose cluster takes free ports alone: it can stand beside another."""

MARKS = {
    "browser": {"chromium"},
    "database": {"postgres"},
    "ranks": {"one_rank", "two_ranks", "four_ranks"},
}
"""Mark → fixtures whose users get it."""

NO_CLUSTER = "127.0.0.1:1"


def on_ray(nodeid: str) -> bool:
    """Whether a test starts a cluster."""
    return nodeid.startswith(ON_RAY)


def fixtures_of(item: pytest.Item) -> set[str]:
    """The names of the fixtures that a test uses."""
    return {*getattr(item, "fixturenames", ())}


def has_gpu() -> bool:
    """Whether torch can use one here."""
    import torch

    return torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Give every test its marks, and put those on Ray first.

    Of these, those with a cluster of their own come before those that share one.
    """
    for item in items:
        asked = fixtures_of(item)
        if on_ray(item.nodeid):
            item.add_marker("ray")
        elif "cluster" in asked:
            raise pytest.UsageError(f"{item.nodeid} starts a Ray cluster: add it to ON_RAY")
        for mark, fixtures in MARKS.items():
            if asked & fixtures:
                item.add_marker(mark)
        if hasattr(item, "callspec") and "postgresql" in item.callspec.params.values():
            item.add_marker("database")
        if item.get_closest_marker("gpu") and not has_gpu():
            item.add_marker(pytest.mark.skip(reason="no GPU here"))
    items.sort(key=lambda item: (not on_ray(item.nodeid), "cluster" in fixtures_of(item)))


def pytest_collection_finish() -> None:
    """A million objects of imported packages never go: no collection need look at them again.

    absl, which JAX's libraries import, took the stream that pytest captures while it collects. It
    would close it as soon as somebody sets up logging anew, and all later tests with it.
    """
    if "absl.logging" in sys.modules:
        sys.modules["absl.logging"].get_absl_handler().python_handler.setStream(sys.__stderr__)
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What every store, application of a service and run would make or draw anew."""
    with pytest.MonkeyPatch.context() as patch:
        if "govray.platform.service.app" in sys.modules:
            from tests.support.route_memory import remember

            remember(patch)
        if "govray.platform.store.database" in sys.modules:
            from tests.support.copied_tables import copy_tables

            copy_tables(patch, tmp_path_factory.mktemp("tables"))
        if "govray.train.driver.preparation" in sys.modules:
            from tests.support.drawn_salt import fix_salt

            fix_salt(patch)
        yield


@pytest.fixture(autouse=True)
def no_process_group_left() -> Iterator[None]:
    """A later test that forks would wait for the group's threads, which no fork has."""
    yield
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_initialized():
        dist.destroy_process_group()
        pytest.fail("the test left a process group behind: end it with destroy_process_group")


@pytest.fixture(scope="session")
def forked() -> Iterator[Forked]:
    """Workers as forks, for the shared cluster and for commands with a cluster of their own."""
    from tests.support.forked_workers import forked_workers

    with forked_workers() as started:
        yield started


def end_cluster() -> None:
    """End what `cluster` started, if a test asked for it; a second time does nothing."""
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()


@pytest.fixture(scope="session")
def cluster(forked: Forked) -> Iterator[None]:
    """A local cluster of two CPUs, as `govray train` starts it; one for all tests."""
    from govray.train.driver.ray_cluster import start_ray
    from tests.support import object_server
    from tests.support.tree import SCRIPTS

    # Workers import what the scripts of docs/own-loop.md import from their user's own code.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SCRIPTS), before]))
    # Jobs run the `python` of this environment.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ.setdefault("RAY_metrics_report_interval_ms", "1000")  # not ten seconds
    os.environ.update(object_server.CREDENTIALS)  # of a server that a test may start later
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", forked.python)
        start_ray(num_cpus=2)
    yield
    end_cluster()


@pytest.fixture(scope="session")
def store_server() -> Iterator[Server]:
    """A server of S3, for all tests of a process."""
    from tests.support import object_server

    started = object_server.start()
    yield started
    started.stop()


@pytest.fixture
def store(store_server: Server) -> BucketPath:
    from govray.storage.bucket_path import BucketPath

    name = f"paths-{time.monotonic_ns()}"
    store_server.bucket(name)
    return BucketPath.parse(store_server.url(name).replace("/commits", "/below/here"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, bool, bool]:
    """Who is not `ON_RAY` finds no cluster and starts none, in no process of its own either.

    The shared cluster ends with its last test: idle, it takes an eighth of two processors.
    """
    if on_ray(item.nodeid):
        ran = yield
        if nextitem is None or not on_ray(nextitem.nodeid):
            end_cluster()
        return ran
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", NO_CLUSTER)
        return (yield)


class TwoLanes(LoadScopeScheduling):
    """One process runs what is `ON_RAY`, in order: two Ray clusters on one machine want the same
    ports. The other begins with those that have `OWN_PORTS`, and takes the rest file by file, since
    module fixtures are dear.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(OWN_PORTS):
            return "own ports"
        return "ray" if on_ray(nodeid) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> TwoLanes:
    return TwoLanes(config, log)
