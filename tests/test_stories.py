"""Stories are left out of the default set, and CI's turns come to each of them."""

from __future__ import annotations

from tests.support.stories import TURNS, chosen

STORIES = [f"tests/test_{n}.py::test_it" for n in range(20)]


def test_turns_share_the_stories_out() -> None:
    parts = [chosen(STORIES, "turn", commits) for commits in range(41, 41 + TURNS)]
    assert sorted(name for part in parts for name in part) == sorted(STORIES)
    assert {len(part) for part in parts} == {3, 4}


def test_a_word_finds_a_story_and_none_is_run_unasked() -> None:
    assert chosen(STORIES, "_7.py") == [STORIES[7]]
    assert chosen(STORIES, "") == STORIES
    assert chosen(STORIES, None) == []
