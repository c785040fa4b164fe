"""A ledger's leaves as one Parquet file, for analysis: ``leaves.parquet`` beside the tiles.

A long table: a row for each corpus of a step's leaf, and for each measured (corpus, layer group)
of its gradient norms. It is derived and signed by nobody; whoever needs to rely on a row looks up
its ``index`` in the tiles. Entropy profiles are not in it: their leaves are.

The file does not replace the ledger. It needs pyarrow, which the extra ``trace`` has.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Final

import pyarrow as pa
from pyarrow import parquet

from govray.governance.record.ledger import AnyLeaf, GradientNorms, Leaf
from govray.platform.store.tile_storage import TileFolder

FILE: Final = "leaves.parquet"

SCHEMA = pa.schema(
    [
        ("index", pa.int64()),
        ("branch", pa.int64()),
        ("step", pa.int64()),
        ("corpus", pa.string()),
        ("world_size", pa.int64()),
        ("rows", pa.int64()),
        ("targets", pa.int64()),
        ("layer_group", pa.string()),
        ("squared_norm", pa.float64()),
        ("route", pa.string()),
    ]
)
"""``world_size``, ``rows``, ``targets`` and ``route`` are null in rows of gradient norms, and
``layer_group`` and ``squared_norm`` in those of steps. ``index`` is the leaf's place in the ledger.
``route`` is the digest that a leaf names where a gate or a later phase sent the rows elsewhere. It
is null where they took the route of their stream."""

_BATCH = 50_000


def write_table(folder: TileFolder, leaves: Iterable[AnyLeaf]) -> None:
    """Write the table of all of a ledger's leaves, in the place of an earlier one."""
    out = io.BytesIO()
    with parquet.ParquetWriter(out, SCHEMA, compression="zstd") as writer:
        rows: list[dict[str, object]] = []
        for index, leaf in enumerate(leaves):
            rows += _rows(index, leaf)
            if len(rows) >= _BATCH:
                writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
                rows = []
        writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
    folder.replace(FILE, out.getvalue())


def _rows(index: int, leaf: AnyLeaf) -> list[dict[str, object]]:
    place = {"index": index, "branch": leaf.branch, "step": leaf.step}
    if isinstance(leaf, Leaf):
        return [
            {
                **place,
                "corpus": corpus,
                "world_size": leaf.world_size,
                "rows": use.rows,
                "targets": use.targets,
                "route": use.route,
            }
            for corpus, use in leaf.corpora.items()
        ]
    if isinstance(leaf, GradientNorms):
        return [
            {**place, "corpus": corpus, "layer_group": group, "squared_norm": square}
            for corpus, squares in leaf.squared_norms.items()
            for group, square in squares.items()
        ]
    return []
