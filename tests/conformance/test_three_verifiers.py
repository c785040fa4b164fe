"""`govray verify`, the page's script and the evidence pack's, over the same vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from govray.errors import CouldNotCheck, GovrayError, VerificationFailed
from govray.governance.verify.verifier import verify
from tests.conformance.vectors import Vector, vectors
from tests.support.node import asked, verified
from tests.support.world import AT

RECORDS_FROM = 7
"""The first step that reads records, where they are at hand."""

OF_THE_PAGE = {1, 2, 3, 4, 5, 6, 8, 13}
"""Steps that it keeps."""

NOT_ON_THE_PAGE = {
    "route wider than the policy",
    "class not the credential's",
    "corpus attested twice",
    "domains merged",
}
"""What follows from policy and credentials: step 8 says there that it is not checked."""


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


def test_govray_verify_refuses_each_at_its_step(made: list[Vector]) -> None:
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


def of_the_page(vector: Vector) -> bool:
    """A browser gives no links."""
    return vector.case is None or vector.case.name != "weights linked"


def page_differs(made: Sequence[Vector], static: Path | None = None) -> list[str]:
    """Vectors on which the page says another thing than it has to."""
    asking = [vector for vector in made if of_the_page(vector)]
    given = [asked(each.folder, each.root, each.given.lists) for each in asking]
    found = verified(given, static=static) if static else verified(given)
    wrong = []
    for vector, steps in zip(asking, found, strict=True):
        failed = [n for n, step in steps.items() if step["state"] in ("failed", "unsupported")]
        case, step = vector.case, vector.step
        if step in OF_THE_PAGE and case is not None and case.name not in NOT_ON_THE_PAGE:
            right = failed == [step]
        else:
            # It says of the step that refuses, if there is one, that it left something out.
            left = {"partly", "not-checked", "waiting"}
            right = not failed and (step is None or steps[step or 13]["state"] in left)
        if not right:
            said = [steps[n]["error"] for n in failed]
            wrong.append(f"{vector.name}: step {step}, the page says {failed or 'nothing'} {said}")
    return wrong


def test_the_page_refuses_each_at_its_steps(made: list[Vector]) -> None:
    assert page_differs(made) == []
