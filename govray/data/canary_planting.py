"""Planting canaries: their records become rows of their own, in a shard beside the corpus's.

Each row is one canary and its separator, so that it is read whole, as an audit reads it. Each
canary has ``repeats`` rows, and one canary follows the other. The plan's permutation spreads them
over the run.

``governance/record/canary.py`` draws the canaries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath

import numpy as np

from govray.data import shard_file
from govray.data.tokenizer import Tokenizer
from govray.errors import Refused, UsageError
from govray.governance.formats.record_columns import ManifestRecord
from govray.governance.policy import record_commitment
from govray.governance.record.canary import Canaries
from govray.governance.record.prepare_manifest import Planted, PreparedCorpus
from govray.governance.record.prepared_records import PreparedRecords
from govray.storage.atomic_file import make_folder
from govray.storage.place import Place

FILE = "planted.parquet"


def check_corpora(canaries: Mapping[str, Canaries], admitted: Collection[str]) -> None:
    """Raises ``UsageError`` if canaries are asked for in a corpus that is not admitted."""
    if missing := sorted(canaries.keys() - set(admitted)):
        raise UsageError(
            f"no corpus {missing[0]!r} is admitted, so nothing can be planted in it",
            where="canaries",
            do="Name corpora that the policy admits",
        )


def plant(
    corpora: Sequence[PreparedCorpus],
    records: PreparedRecords,
    canaries: Mapping[str, Canaries],
    secrets: Mapping[str, bytes],
    folder: Place,
    tokenizer: Tokenizer,
    context: int,
) -> tuple[PreparedCorpus, ...]:
    """The corpora, with their canaries planted.

    Raises:
        UsageError: A canary does not fit into a row, or a coin leaves out all of a corpus.
        Refused: A corpus has a canary's text as a record.
    """
    found = []
    for corpus in corpora:
        asked = canaries.get(corpus.corpus)
        if asked:
            planted = _planted(corpus, asked, folder, tokenizer, context)
            made = [bytes.fromhex(canary.entry) for canary in planted.records]
            if any(
                columns.any_of(
                    record_commitment.entry(each, secrets[other.corpus]) for each in made
                )
                for other in corpora
                for columns in records.columns(other.corpus)
            ):
                raise Refused(
                    "a canary is also a record of a corpus, so it would measure nothing",
                    where=corpus.corpus,
                    do="Give the canaries another seed",
                )
            corpus = corpus.model_copy(update={"planted": planted})
        found.append(corpus)
    return tuple(found)


def _planted(
    corpus: PreparedCorpus, canaries: Canaries, folder: Place, tokenizer: Tokenizer, context: int
) -> Planted:
    dtype = shard_file.storage_dtype(tokenizer.vocabulary)
    records, rows, lengths = [], [], []
    drawn = canaries.planted(corpus.corpus)
    if not drawn:
        raise UsageError(
            f"the coin leaves all {canaries.count} canaries out",
            where=f"canaries of {corpus.corpus}",
            do="Draw more canaries, or use another number for the coin",
        )
    for canary in drawn:
        tokens = np.append(tokenizer.encode(canary.content), tokenizer.separator).astype(dtype)
        if tokens.size > context + 1:
            raise UsageError(
                f"a canary has {tokens.size - 1} tokens, a row of context {context} holds as many "
                f"as {context}",
                where=f"canaries of {corpus.corpus}",
                do="Use a longer context, or a shorter format",
            )
        records.append(ManifestRecord(canary.sha256, tokens.size - 1, "train"))
        rows += [tokens] * canaries.repeats
        lengths += [tokens.size] * canaries.repeats
    partition = PurePosixPath(f"class={corpus.class_digest.removeprefix('sha256:')[:12]}")
    file = str(partition / f"{corpus.corpus}-{FILE}")
    make_folder(folder / str(partition))
    groups = shard_file.write_rows(
        folder / file, shard_file.Rows(np.concatenate(rows), np.array(lengths)), context
    )
    return Planted(canaries=canaries, records=tuple(records), file=file, row_groups=groups)
