"""Tags of experiments: replaced as a whole, and kept where the index is made again."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine
from sqlmodel import Session

from govray.platform.store import rebuild
from govray.platform.store.experiment_tags import replace_tags, tags_of


def test_tags_are_replaced_and_read_of_many_at_once(store: Engine) -> None:
    with Session(store) as session:
        assert replace_tags(session, "one", ["b", "a", "b"]) == ["a", "b"]
        assert replace_tags(session, "two", ["a"]) == ["a"]
        assert replace_tags(session, "one", ["c", "a"]) == ["a", "c"]
        session.commit()
        assert tags_of(session, ["one", "two", "none"]) == {"one": ["a", "c"], "two": ["a"]}
        assert replace_tags(session, "one", []) == []
        assert tags_of(session, ["one", "two"]) == {"two": ["a"]}


@pytest.mark.parametrize("kept", [True, False])
def test_a_rebuild_keeps_them(store: Engine, monkeypatch: pytest.MonkeyPatch, kept: bool) -> None:
    """And without the rule they are lost: no storage knows them."""
    with Session(store) as session:
        replace_tags(session, "one", ["paper"])
        session.commit()
    if not kept:
        monkeypatch.setattr(rebuild, "KEPT", rebuild.KEPT - {"experimenttag"})
    rebuild.rebuild(store, lambda _: None)
    with Session(store) as session:
        assert tags_of(session, ["one"]) == ({"one": ["paper"]} if kept else {})
