"""`govray verify` and the evidence pack's script, over the same vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from govray.errors import CouldNotCheck, GovrayError, Malformed, VerificationFailed
from govray.evidence.packs import evidence_pack, verify_evidence
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope
from govray.governance.verify.verifier import verify
from tests.conformance.attacks import CASES
from tests.conformance.vectors import Vector, vectors
from tests.support.world import AT, write

pytestmark = pytest.mark.slow

RECORDS_FROM = 7
"""The first step that reads records, where they are at hand."""

OF_THE_SCRIPT = {1: 2, 2: 3, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7, 10: 8, 11: 9, 13: 10, 17: 3}
"""Step of `govray verify` → of the script, for those that it has."""

NOT_IN_THE_SCRIPT = {
    # Of step 7: which pulse decides.
    "reserve that no beacon's pulse decided",
    # Of step 10: what follows from plan and manifest.
    "counts that the plan does not give",
    "ranges that the plan does not give",
    "two steps exchanged and renumbered",
    "a step after the last",
    # Of step 11: what follows from norms, domains and replays.
    "gradient-norm share understated",
    "gradient-norm share hidden",
    "gradient-norm share without a sample",
    "taint hidden",
    "level without evidence",
    "replay of other weights",
    "replay of another plan",
    "replay across other code",
    "replay of the weights, and not of their average",
} | {case.name for case in CASES if case.points_at.startswith("step 2 gradient norms")}
NOT_IN_THE_SCRIPT |= {
    "gradient norm of a corpus that was not read",
    "gradient norm where none is permitted",
    "gradient norm left out of a group",
}
"""What it leaves to `govray verify`, as it says, of the steps that it has."""

UNREAD = {14, 15, 16}
"""Steps over files that it does not read: it names each."""

OPEN_IN_THE_SCRIPT = {"delegation revoked"}
"""It says that it could not check this."""

LINKED = "weights linked"
"""A pack has no links: one with a link is refused (`tests/evidence/packs`)."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Vector]:
    return [*vectors(tmp_path_factory.mktemp("vectors"))]


def answer(vector: Vector, *, full: bool = False) -> tuple[int | None, GovrayError | None]:
    """What `govray verify` says: step, or 0 if it could not be checked, or None; and its error."""
    try:
        verify(
            vector.folder,
            trust_root=vector.root,
            revocations=vector.given.lists,
            at=AT,
            records=vector.world.files.read if full else None,
        )
    except VerificationFailed as error:
        return int(error.what.split()[1]), error
    except CouldNotCheck as error:
        return 0, error
    return None, None


def check(made: Sequence[Vector]) -> None:
    """What `govray verify` says of each."""
    for vector in made:
        found, error = answer(vector)
        assert found == vector.step, f"{vector.name}: {error}"
        if vector.case is None:
            continue
        full = int(vector.case.step.split()[1]) if vector.case.step else 0
        if full >= RECORDS_FROM:
            found, error = answer(vector, full=True)
            assert found == full, f"{vector.name} with its records: {error}"
        if not vector.name.startswith("plain: "):
            continue
        cause = error.__cause__ if full and error else error
        assert type(cause) is vector.case.kind, f"{vector.name}: {cause!r}"
        assert vector.case.points_at in str(cause), f"{vector.name}: {cause}"
        # What a person sees says where, too.
        assert isinstance(cause, GovrayError)
        assert error is not None
        assert (error.where, error.do) == (cause.where, cause.do), vector.name


def test_govray_verify_refuses_each_at_its_step(made: list[Vector]) -> None:
    check(made)


def packed(vector: Vector) -> list[str]:
    """The words for the pack's script, about a pack of the vector as a forger would make one."""
    pack = vector.folder.parent
    root = pack.with_name(f"{pack.name}.root.json")
    for place in (root, pack / "trust" / "root.json"):
        write(place, vector.root)
    for number, data in enumerate(vector.given.lists):
        write(pack / "trust" / "revocations" / f"{number}.dsse.json", data)
    there = [path for path in pack.rglob("*") if path.is_file()]
    files = {
        path.relative_to(pack).as_posix(): canonical_json.sha256(path.read_bytes())
        for path in there
        if path.name != "contents.json"
    }
    try:
        digest = canonical_json.sha256(
            Envelope.parse((vector.folder / model_folder.ATTESTATION).read_bytes()).payload
        )
    except Malformed:
        digest = ""  # the script reads it too, and not before
    contents = {
        "format": evidence_pack.FORMAT,
        "at": "2026-11-20T00:00:00Z",
        "attestation": digest,
        "files": files,
    }
    write(pack / "contents.json", canonical_json.encode(contents))
    return [str(pack), "--trust-root", str(root), "--model", str(vector.folder), "--partial"]


def script_differs(made: Sequence[Vector], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Vectors on which the pack's script says another thing than it has to."""
    wrong = []
    for vector in made:
        if vector.case is not None and vector.case.name == LINKED:
            continue
        words = packed(vector)
        capsys.readouterr()
        code = verify_evidence.main(words)
        said = capsys.readouterr().out
        step = OF_THE_SCRIPT.get(vector.step) if vector.step is not None else None
        name = vector.case.name if vector.case else ""
        if step is not None and name not in NOT_IN_THE_SCRIPT | OPEN_IN_THE_SCRIPT:
            right = code == 1 and said.splitlines()[-1].startswith(f"{step:2} ✗ ")
        else:
            right = code == (3 if vector.step == 0 or name in OPEN_IN_THE_SCRIPT else 0)
            # What is false may show in a later step.
            right = right or (code == 1 and vector.step in {8, 9, 12})
            if vector.step in UNREAD:
                right = (
                    right and f"Left to govray verify: {name.removeprefix('altered ')}: " in said
                )
        if not right:
            wrong.append(
                f"{vector.name}: step {vector.step}, the script says {code}, {said[-300:]}"
            )
    return wrong


def test_the_packs_script_refuses_each_at_its_steps(
    made: list[Vector], capsys: pytest.CaptureFixture[str]
) -> None:
    assert script_differs(made, capsys) == []


@pytest.mark.story
def test_every_kind_of_model_with_every_attack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [*vectors(tmp_path, every=True)]
    assert script_differs(made, capsys) == []
    check(made)
