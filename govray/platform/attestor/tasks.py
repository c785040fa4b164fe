"""What the parser is asked, as functions of JSON. They run without a key, on hostile files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from govray.data.records_file import reader
from govray.errors import Refused
from govray.governance.formats.document import parse_time
from govray.governance.formats.keys import PublicKey
from govray.governance.trust.anchor import TrustAnchor
from govray.governance.verify.verifier import verify, verify_unsigned
from govray.train.attest.write_model import unsigned
from govray.train.inputs.recorded_inputs import prepared_folder
from govray.train.inputs.run_record import read_record


def read(run: str, model: str, prepared: Sequence[str], commit: str, ended: str | None) -> Any:
    """Fill ``model`` with a run's model; what its folder says, for the signer to compare.
    ``ended``: when a trial did, by the register; its search may have stopped it."""
    early = parse_time(ended) if ended and read_record(Path(run)).finished is None else None
    among = [Path(each) for each in prepared]
    found = unsigned(Path(run), Path(model), stopped=early, prepared=among)
    if found.commit != commit:
        raise Refused("the last commit is not the registered one", where="commit")
    return found.to_json()


def check(
    run: str,
    model: str,
    prepared: Sequence[str],
    payload: str,
    key: str,
    at: str,
    trust_root: str,
    revocations: Sequence[str],
) -> Any:
    """Verify a model at full depth, as if the key had signed ``payload``; its digest."""
    record = read_record(Path(run))
    found = verify_unsigned(
        Path(model),
        payload.encode(),
        PublicKey.from_pem(key.encode()),
        trust_root=_anchor(trust_root, revocations),
        at=parse_time(at),
        records=reader(prepared_folder(Path(run), record, [Path(each) for each in prepared])),
    )
    return found.digest


def verified(model: str, at: str, trust_root: str, revocations: Sequence[str]) -> Any:
    """Verify a model as anybody would; its digest."""
    anchor = _anchor(trust_root, revocations)
    found = verify(Path(model), trust_root=anchor, at=parse_time(at), max_rows=None)
    if found.uncovered:
        raise Refused("the model has files that nobody attests", where=found.uncovered[0][:200])
    return found.digest


def _anchor(trust_root: str, revocations: Sequence[str]) -> TrustAnchor:
    """The attestor's own root and lists; nothing that is pinned for a user."""
    data = Path(trust_root).read_bytes()
    return TrustAnchor.read(data, [Path(each) for each in revocations])


TASKS: Mapping[str, Callable[..., Any]] = {"read": read, "check": check, "verified": verified}
