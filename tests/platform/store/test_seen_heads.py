"""The store keeps every signed head that it saw of a run, and refuses the fork."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlmodel import Session, select

from govray.errors import CouldNotCheck, Refused
from govray.governance.verify.verifier import VerifiedModel
from govray.platform.store import model_index, tables
from govray.platform.store.model_index import index_model
from govray.platform.store.rebuild import rebuild
from tests.support.world import RUN, World

KEY = bytes(32)


@pytest.fixture(scope="module")
def world() -> World:
    return World(corpora={"acme": (4,), "alpha": (4, 4), "gamma": (4,)}, steps=4, longest=6)


@pytest.fixture(scope="module")
def models(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, VerifiedModel]:
    """Of one run: its model, one of a run that stopped early, and one of another history."""
    place = tmp_path_factory.mktemp("heads")
    whole = world.deploy(place / "whole")
    early = world.deploy(place / "early", leaves=lambda leaves: leaves[:2])
    quotas, world.quotas = world.quotas, dict.fromkeys(world.quotas, 2)
    other = world.deploy(place / "other")
    world.quotas = quotas
    folders = {"whole": whole, "early": early, "other": other}
    return {n: world.verify(f) for n, f in folders.items()}


def index(engine: Engine, world: World, model: VerifiedModel, tiles: Path | None = None) -> None:
    with Session(engine) as session:
        place = None if tiles is None else str(tiles)
        index_model(session, model, trust_root=world.root, key=KEY, tiles=place)
        session.commit()


def sizes(engine: Engine) -> list[int]:
    with Session(engine) as session:
        return sorted(head.size for head in session.exec(select(tables.Head)))


@pytest.mark.parametrize("first", ["whole", "early"])
def test_heads_that_extend_each_other_are_kept(
    store: Engine,
    world: World,
    models: dict[str, VerifiedModel],
    tmp_path: Path,
    first: str,
) -> None:
    second = "early" if first == "whole" else "whole"
    for name in (first, second, first):
        index(store, world, models[name], tmp_path / "tiles")
    assert sizes(store) == [models["early"].ledger.size, models["whole"].ledger.size]
    with Session(store) as session:
        row = session.get_one(tables.LedgerRow, RUN)
        assert (row.size, row.tiles) == (models["whole"].ledger.size, str(tmp_path / "tiles"))
    assert (tmp_path / "tiles" / "checkpoint").read_bytes().split(b"\n")[1] == b"%d" % row.size


@pytest.mark.parametrize("known", ["whole", "early", "other"])
def test_a_fork_is_refused_and_nothing_of_it_written(
    store: Engine, world: World, models: dict[str, VerifiedModel], tmp_path: Path, known: str
) -> None:
    index(store, world, models[known], tmp_path / "tiles")
    for name in ("whole", "early") if known == "other" else ("other",):
        with pytest.raises(Refused, match="a fork"):
            index(store, world, models[name], tmp_path / "tiles")
    assert sizes(store) == [models[known].ledger.size]
    with Session(store) as session:
        assert len(session.exec(select(tables.AttestationRow)).all()) == 1


def test_control_without_the_comparison_both_histories_are_indexed(
    store: Engine,
    world: World,
    models: dict[str, VerifiedModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_index, "check_known", lambda *_: True)
    index(store, world, models["whole"])
    index(store, world, models["other"])
    with Session(store) as session:
        assert len(session.exec(select(tables.AttestationRow)).all()) == 2


def test_a_shorter_ledger_is_not_judged_without_the_longer_ones_tiles(
    store: Engine, world: World, models: dict[str, VerifiedModel]
) -> None:
    index(store, world, models["whole"])
    with pytest.raises(CouldNotCheck, match="tiles are not on storage"):
        index(store, world, models["early"])


def test_a_rebuild_forgets_no_head(
    store: Engine, world: World, models: dict[str, VerifiedModel], tmp_path: Path
) -> None:
    """Whoever deletes a run's folder and rebuilds does not make room for another history."""
    index(store, world, models["whole"], tmp_path / "tiles")
    rebuild(store, lambda _new: None)
    assert sizes(store) == [models["whole"].ledger.size]
    with pytest.raises(Refused, match="a fork"):
        index(store, world, models["other"])
    with pytest.raises(Refused, match="a fork"):
        rebuild(store, lambda new: index(new, world, models["other"]))
