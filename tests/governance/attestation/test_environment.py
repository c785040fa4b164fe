"""What differs between two environments, and which of it is code."""

from __future__ import annotations

from typing import Any

import pytest

from govray.governance.attestation.environment import Difference, SourceCode, differences
from tests.support.world import DIGEST, ENVIRONMENT

SOURCE = SourceCode(module="mymodel", digest=DIGEST, commit="ab" * 20, dirty=False)
OTHER = DIGEST[:-1] + ("0" if DIGEST[-1] != "0" else "1")


def test_an_environment_does_not_differ_from_itself() -> None:
    assert differences(ENVIRONMENT, ENVIRONMENT) == ()


@pytest.mark.parametrize(
    ("change", "expected", "is_code"),
    [
        ({"python": "3.12.1"}, Difference("python", "3.11.9", "3.12.1"), False),
        ({"packages": {"torch": "2.12"}}, Difference("packages.torch", "2.13.0", "2.12"), False),
        ({"packages": {}}, Difference("packages.torch", "2.13.0", None), False),
        ({"threads": 4}, Difference("threads", "1", "4"), False),
        ({"code_digest": OTHER}, Difference("codeDigest", DIGEST, OTHER), True),
    ],
)
def test_each_difference_is_named(
    change: dict[str, Any], expected: Difference, is_code: bool
) -> None:
    [found] = differences(ENVIRONMENT, ENVIRONMENT.model_copy(update=change))
    assert found == expected
    assert found.is_code is is_code


def test_a_commit_differs_without_being_other_code_if_the_files_are_the_same() -> None:
    before = ENVIRONMENT.model_copy(update={"source": SOURCE})
    later = SOURCE.model_copy(update={"commit": "cd" * 20, "dirty": True})
    found = differences(before, ENVIRONMENT.model_copy(update={"source": later}))
    assert [each.name for each in found] == ["source.commit", "source.dirty"]
    assert not any(each.is_code for each in found)
    edited = SOURCE.model_copy(update={"digest": OTHER})
    [found_edit] = differences(before, ENVIRONMENT.model_copy(update={"source": edited}))
    assert found_edit.is_code
