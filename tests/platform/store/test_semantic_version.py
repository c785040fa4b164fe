"""Versions: three numbers, in SemVer's order, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from govray.errors import UsageError
from govray.platform.store.semantic_version import MOST, parse_version

numbers = st.integers(0, MOST)


def test_the_order_is_of_numbers_and_not_of_text() -> None:
    written = ["1.10.0", "0.9.9", "1.9.0", "1.9.10", "1.9.9"]
    ordered = [str(v) for v in sorted(map(parse_version, written))]
    assert ordered == ["0.9.9", "1.9.0", "1.9.9", "1.9.10", "1.10.0"]
    assert sorted(written) != ordered, "text would be in another order"


@pytest.mark.parametrize(
    "text",
    ["", "1", "1.2", "1.2.3.4", "v1.2.3", "01.2.3", "1.2.3-rc.1", "1.2.3+7", "1.2.-3", "1. 2.3",
     "1.2.3\n", "１.2.3", "1.2.2147483648", "1" * 10_000],
)  # fmt: skip
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no version") as caught:
        parse_version(text)
    assert len(str(caught.value)) < 300
