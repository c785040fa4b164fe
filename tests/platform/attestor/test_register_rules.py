"""What the register takes: every chain that grows by the rules, and none that branches."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.governance.submission.register_forms import CommitPosition
from govray.platform.attestor.register_rules import NOWHERE, belongs, extends, opens, takes
from govray.platform.attestor.register_tables import Accepted, Attempt, Posted
from govray.train.run_folder.run_names import trial_name
from tests.support.registered import (
    RUN,
    TRUST_ROOT,
    acceptance,
    attempt,
    committed,
    digest,
    started,
)

AT = "2026-11-24T09:00:00Z"


def posted(form: Any, attempt: int = 1, **changes: Any) -> Posted:
    return Posted(**dict(form) | {"submission": "s-1", "attempt": attempt, "at": AT} | changes)


def after(last: Posted | None, kind: str, **changes: Any) -> Posted:
    """The post of a kind that follows in order."""
    attempt = last.attempt if last else 1
    new_attempt = changes.get("attempt", attempt) != attempt
    due = 0 if last is None or new_attempt else last.sequence + 1
    position = last.position if last else NOWHERE
    given = dict(position) | {
        **{"run": "r", "sequence": due, "kind": kind, "previous": position.commit},
        **{"submission": "s-1", "attempt": attempt, "at": AT},
    }
    return Posted(**given | changes)


def commit(last: Posted, steps: int, **changes: Any) -> Posted:
    step = last.step + steps
    return after(
        last,
        "committed",
        **{
            "step": step,
            "commit": digest(f"{last.branch} {step} {last.sequence}"),
            "ledger_size": last.ledger_size + steps,
            "ledger_root": digest(f"root {last.ledger_size + steps}"),
        }
        | changes,
    )


MOVES = st.lists(st.sampled_from(["commit", "again", "attempt", "rollback"]), max_size=12)


@st.composite
def chains(draw: st.DrawFn) -> list[Posted]:
    """Chains that jobs make: commits, attempts, rollbacks, an end."""
    chain = [after(None, "started")]
    for move in draw(MOVES):
        last = chain[-1]
        if move == "attempt":
            chain.append(after(last, "started", attempt=last.attempt + draw(st.integers(1, 3))))
        elif move == "rollback" and last.commit:
            chain.append(
                commit(
                    last,
                    0,
                    branch=last.branch + 1,
                    step=draw(st.integers(1, last.step)),
                    ledger_root=last.ledger_root,
                )
            )
        elif move == "again" and last.commit:
            chain.append(commit(last, 0, ledger_root=last.ledger_root))
        else:
            chain.append(commit(last, draw(st.integers(1, 5))))
    if draw(st.booleans()):
        chain.append(after(chain[-1], "finished"))
        chain.append(after(chain[-1], "ended"))
    return chain


@given(chains())
def test_what_jobs_make_extends(chain: list[Posted]) -> None:
    for last, new in zip([None, *chain], chain, strict=False):
        assert extends(last, new) is None


@given(chains(), st.data())
def test_nothing_is_left_out_repeated_or_turned_round(
    chain: list[Posted], data: st.DataObject
) -> None:
    """Within a chain, only the next post extends. Or it begins a later attempt from equal state."""
    i = data.draw(st.integers(0, len(chain) - 1))
    j = data.draw(st.integers(0, len(chain) - 1))
    taken = extends(chain[i], chain[j]) is None
    skipped = chain[j].kind == "started" and chain[j].attempt > chain[i].attempt
    assert taken == (j == i + 1 or (skipped and chain[j].position == chain[i].position))


@given(chains())
def test_nothing_follows_an_end_but_another_attempt(chain: list[Posted]) -> None:
    last = chain[-1]
    ended = after(last, "ended") if last.kind != "ended" else last
    for kind in ("started", "committed", "finished", "ended"):
        assert extends(ended, after(ended, kind)) is not None
    assert extends(ended, after(ended, "started", attempt=ended.attempt + 1)) is None


BASE = commit(after(None, "started"), 5)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"step": 4}, "lies before step 5"),
        ({"ledger_size": 4}, "fewer than 5"),
        ({"ledger_size": 5}, "and others"),
        ({"previous": digest("planted")}, "from another commit"),
        ({"previous": None}, "from another commit"),
        ({"sequence": 1}, "post 2 is due"),
        ({"sequence": 3}, "post 2 is due"),
        ({"commit": None}, "a commit has a digest"),
        ({"ledger_root": None}, "has a root"),
        ({"kind": "finished"}, "only a commit moves"),
        ({"kind": "started"}, "has started already"),
        ({"attempt": 2}, "first post says that it started"),
    ],
)
def test_what_does_not_extend_is_named(changes: dict[str, Any], why: str) -> None:
    good = commit(BASE, 3)
    assert extends(BASE, good) is None
    assert why in (extends(BASE, good.model_copy(update=changes)) or "")


def test_a_run_begins_with_its_start() -> None:
    first = commit(after(None, "started"), 1)
    assert "first post" in (extends(None, first) or "")
    placed = after(None, "started", step=3)
    assert extends(None, placed) == "only a commit moves a run"
    assert "attempt 2 has posted" in (
        extends(after(None, "started", attempt=2), after(None, "started", attempt=1)) or ""
    )


def opened(number: int, secret: str, **changes: Any) -> Attempt:
    form = dict(attempt(number, secret))
    return Attempt(**form | {"submission": "s-1", "opened": AT} | changes)


ONE, TWO = opened(1, "a"), opened(2, "b")


@given(st.integers(1, 4), st.sampled_from("abc"), st.booleans())
def test_attempts_are_opened_in_order(number: int, secret: str, posts: bool) -> None:
    why = opens([ONE, TWO], attempt(number, secret), posted=posts)
    fresh = number > 2 and secret == "c"
    same = number == 2 and (secret == "b" or (secret == "c" and not posts))
    assert (why is None) == (fresh or same)
    assert opens([], attempt(number, secret), posted=False) is None


def test_a_post_that_came_twice_is_one_and_another_flags() -> None:
    last = posted(started())
    first = posted(committed(1, 5))
    again = first.model_copy(update={"at": "2026-11-24T09:00:07Z"})
    assert takes([ONE], ONE, last, None, first) is None
    assert takes([ONE], ONE, first, first, again) is None
    other = posted(committed(1, 6))
    refusal = takes([ONE], ONE, first, first, other)
    assert refusal
    assert refusal.branches
    gap = takes([ONE], ONE, last, None, posted(committed(2, 5)))
    assert gap
    assert gap.branches
    forked = takes([ONE], ONE, last, None, posted(committed(1, 5, digest("elsewhere"))))
    assert forked
    assert forked.branches
    # Its own history, told wrongly, is no second poster.
    back = takes([ONE], ONE, first, None, posted(committed(2, 4, first.commit)))
    assert back
    assert not back.branches


def test_an_older_or_flagged_attempt_posts_no_more() -> None:
    late = takes([ONE, TWO], ONE, None, None, posted(started()))
    assert late
    assert "attempt 2 was opened since" in late.why
    flagged = ONE.model_copy(update={"flagged": "two"})
    assert takes([flagged], flagged, None, None, posted(started()))
    assert takes([flagged, TWO], TWO, None, None, posted(started(), 2)) is None


def test_a_position_is_its_five_fields() -> None:
    assert BASE.position == CommitPosition(**{n: getattr(BASE, n) for n in NOWHERE.model_dump()})


def test_a_submission_posts_of_its_own_run_and_its_search_s_trials_alone() -> None:
    train, search = (
        Accepted(**dict(acceptance(kind=kind)), registered=AT, trust_root=TRUST_ROOT)
        for kind in ("train", "tune")
    )
    trial = trial_name(RUN, 3)
    assert belongs(train, RUN)
    assert not belongs(train, trial)
    assert belongs(search, f"{trial}.1")
    assert not belongs(search, trial_name("another", 3))
    assert not belongs(search, "victim")
