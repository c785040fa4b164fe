"""Which commits stay: a pure function, and what it deletes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import Malformed, UsageError
from govray.governance.formats import canonical_json
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.holds import hold, release
from govray.train.checkpoint.pins import read_pins
from govray.train.checkpoint.retention import Commit, Rules, kept
from govray.train.state.garbage_collection import apply, inventory, pin, pin_start, sweep
from govray.train.state.snapshot import folder_name

LOSSES = st.none() | st.floats(-1e6, 1e6)
COMMITS = st.dictionaries(st.integers(0, 30), LOSSES, max_size=12).map(
    lambda losses: [
        Commit(name=folder_name(step), step=step, loss=loss) for step, loss in losses.items()
    ]
)
RULES = st.builds(Rules, best=st.integers(0, 5), latest=st.integers(1, 5))
PINS = st.sets(st.integers(0, 30).map(folder_name), max_size=4)


@given(COMMITS, RULES, PINS)
def test_what_stays_is_the_union_that_the_rules_name(
    commits: list[Commit], rules: Rules, pins: set[str]
) -> None:
    reasons = kept(commits, rules, pins)
    by_name = {commit.name: commit for commit in commits}
    assert reasons.keys() <= by_name.keys()
    if commits:
        assert "latest" in reasons[max(commits, key=lambda commit: commit.step).name]
    latest = [by_name[name] for name, why in reasons.items() if "latest" in why]
    assert len(latest) == min(rules.latest, len(commits))
    best = [by_name[name] for name, why in reasons.items() if "best" in why]
    assert len(best) == min(rules.best, sum(commit.loss is not None for commit in commits))
    assert {name for name, why in reasons.items() if "pinned" in why} == pins & by_name.keys()
    for commit in commits:
        if commit not in latest and latest:
            assert commit.step < min(each.step for each in latest)
        if commit not in best and best and commit.loss is not None:
            # Not better than any that stays, and older than those it equals.
            assert all(
                (each.loss, -each.step) < (commit.loss, -commit.step)  # type: ignore[operator]
                for each in best
            )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step, loss in ((1, 4.0), (2, 1.0), (3, 3.0), (4, None), (5, 2.0)):
        state = {"step": step, "keep": {"best": 1, "latest": 1}, "governance": {}, "ledger": {}}
        state |= {} if loss is None else {"loss": loss}
        commit_folder.commit(
            tmp_path / folder_name(step), {"state.json": canonical_json.encode(state), "w": b"123"}
        )
    return tmp_path


def steps(run: Path) -> list[int]:
    return [commit.step for commit in inventory(run).commits]


def test_best_and_latest_stay_and_the_others_go(run: Path) -> None:
    assert steps(run) == [5, 4, 3, 2, 1]
    assert (
        inventory(run).commits[-1].size
        == len((run / folder_name(1) / "state.json").read_bytes()) + 3
    )
    assert apply(run, Rules()) == (folder_name(4), folder_name(3), folder_name(1))
    assert steps(run) == [5, 2]
    assert apply(run, Rules()) == ()


def test_a_pin_keeps_what_the_rules_would_not(run: Path) -> None:
    pin(run, folder_name(3), "run other starts from it")
    pin(run, folder_name(1), "released")
    assert read_pins(run) == {
        folder_name(1): "released",
        folder_name(3): "run other starts from it",
    }
    apply(run, Rules(best=0))
    assert steps(run) == [5, 3, 1]
    with pytest.raises(UsageError, match="no such commit"):
        pin(run, folder_name(4), "gone")


def test_a_hold_keeps_all_from_the_run_s_own_rules(run: Path) -> None:
    hold(run, "C-7", by="ada", at="2026-11-25T10:00:00Z")
    assert apply(run, Rules()) == ()
    assert steps(run) == [5, 4, 3, 2, 1]
    release(run, "C-7")
    apply(run, Rules())
    assert steps(run) == [5, 2]


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', '{"a":1}'])
def test_nothing_goes_while_the_pins_cannot_be_read(run: Path, text: str) -> None:
    (run / "pins.json").write_text(text)
    with pytest.raises(Malformed, match=r"pins\.json"):
        apply(run, Rules())
    assert steps(run) == [5, 4, 3, 2, 1]


def test_what_is_not_whole_is_left_alone_and_named(run: Path) -> None:
    (run / folder_name(3) / "w").unlink()
    (run / folder_name(4) / "manifest.json").write_text("{}")
    path = run / folder_name(2) / "state.json"
    path.write_text(path.read_text().replace('"loss":1', '"loss":9'))
    found = inventory(run)
    assert [commit.step for commit in found.commits] == [5, 1]
    assert found.damaged.keys() == {folder_name(2), folder_name(3), folder_name(4)}
    assert "w: missing" in found.damaged[folder_name(3)]
    assert apply(run, Rules(best=0)) == (folder_name(1),)
    assert sweep(run) == ()
    assert len(list(run.glob("checkpoint_*"))) == 4


def test_a_link_is_not_followed(run: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = (run / folder_name(1)).rename(tmp_path_factory.mktemp("away") / "kept")
    (run / folder_name(1)).symlink_to(elsewhere)
    apply(run, Rules(best=0))
    sweep(run)
    commit_folder.load(elsewhere)


def test_the_newest_stays_even_if_the_rules_forget_it(run: Path) -> None:
    assert apply(run, Rules(best=0, latest=0))
    assert steps(run) == [5]


def test_a_warm_start_pins_the_commit_that_it_reads(run: Path, tmp_path: Path) -> None:
    pin_start(run / folder_name(1), "other starts from it")
    pin_start(run / folder_name(3) / "adapters" / "acme", "third starts from it")
    pin_start(tmp_path.parent, "no commit")
    assert read_pins(run) == {
        folder_name(1): "other starts from it",
        folder_name(3): "third starts from it",
    }
