"""A growing ledger's bytes and root are those of the ledger."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from govray.governance.record.ledger import AnyLeaf, Ledger
from govray.train.run_folder.ledger_tree import LedgerFile
from tests.support.leaves import leaf, norms

EVERY: list[AnyLeaf] = [
    each for i in range(40) for each in ([leaf(i), norms(i)] if i % 7 == 0 else [leaf(i)])
]


@given(st.lists(st.integers(0, len(EVERY)), max_size=6).map(sorted))
def test_it_equals_the_ledger_at_every_length(lengths: list[int]) -> None:
    growing = LedgerFile()
    for length in lengths:
        growing.extend(EVERY[:length])
        whole = Ledger("run", EVERY[:length])
        assert (growing.data, growing.size, growing.root) == (whole.data, whole.size, whole.root)
