"""Whether an attestation shows that a corpus is not in its model: left out, or removed.

An attestation was verified when it was indexed, so what it states follows from its manifest and
ledger. Here that is compared with what was decided in a case. A verified attestation has the
corpora of its manifest, each under its credential.

Nothing here says that weights hold nothing of a corpus: only that no recorded path leads there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from govray.errors import Refused
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.policy.route import ADAPTER

UNKNOWN = "unknown"


def check_left_out(
    attestation: Attestation, roots: Mapping[str, str], corpus: str, root: str
) -> None:
    """Return if no recorded path leads from a corpus into the model.

    1. No corpus of the run has its name.
    2. None has its records under another name.
    3. No layer group is reached by it, nor by weights that nobody attests.

    Args:
        attestation: Verified.
        roots: Corpus of that attestation → Merkle root of its records.

    Raises:
        Refused: The first of these that does not hold.
    """
    where = f"run {attestation.run.id}"
    if corpus in roots or corpus in {each.corpus for each in attestation.corpora}:  # 1
        raise Refused(
            f"its manifest has the corpus {corpus!r}",
            where=where,
            do="Link a version of a run that was made without it",
        )
    if again := next((name for name, each in sorted(roots.items()) if each == root), None):  # 2
        raise Refused(
            f"its corpus {again!r} has the same records as {corpus!r}",
            where=where,
            do="Link a version of a run that was made without these records",
        )
    _check_unreached(attestation, corpus, where=where)  # 3


def check_removed(attestation: Attestation, corpus: str) -> None:
    """Return if a corpus trained adapters alone, and the attestation states that they are deleted.

    Args:
        attestation: Verified.

    Raises:
        Refused: It trained something else, or an adapter of it is still there.
    """
    where = f"run {attestation.run.id}"
    admitted = next((each for each in attestation.corpora if each.corpus == corpus), None)
    if admitted is None:
        raise Refused(
            f"its run read no corpus {corpus!r}, so nothing of it was removed there",
            where=where,
            do="Decide 'revoked' for a version without the corpus",
        )
    own = {each.name for each in attestation.adapters if corpus in each.corpora}
    gone = {each.adapter for each in attestation.removals}
    if left := sorted(own - gone):
        raise Refused(
            f"the adapter {left[0]!r}, which {corpus!r} trained, is still in it",
            where=where,
            do=f"Remove it: govray adapter remove MODEL {left[0]}",
        )
    if not own:
        raise Refused(
            f"{corpus!r} trained no adapter, so there is none to remove",
            where=where,
            do="Decide 'revoked', and link a version of a run without it",
        )
    _check_unreached(attestation, corpus, where=where, gone={f"{ADAPTER}{each}" for each in own})


def _check_unreached(
    attestation: Attestation, corpus: str, *, where: str, gone: Collection[str] = ()
) -> None:
    """Return if no layer group that is there was reached by a corpus, by any recorded path."""
    for each in attestation.taint:
        if each.group in gone:
            continue
        if corpus in each.direct or corpus in each.transitive:
            raise Refused(
                f"the corpus {corpus!r} reached its layer group {each.group!r}",
                where=where,
                do="Link a version of a run that was made without it",
            )
        if UNKNOWN in each.transitive:
            raise Refused(
                f"its layer group {each.group!r} began with weights that no attestation speaks for",
                where=where,
                do="Nobody can say that the corpus is not in them",
            )
