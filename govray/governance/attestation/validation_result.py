"""What validation data gave for the attested weights: a number that the signer states.

Nobody can compute it again from the model folder, for validation data are not in it. Somebody who
has them, and the weights, can.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import Field

from govray.errors import Refused
from govray.governance.formats.bounds import ShortText
from govray.governance.formats.document import Digest, Document, Name


class ValidationResult(Document):
    """The metric that a run was judged by, of its last state.

    Attributes:
        metric: Its name.
        goal: Which way is better.
        value: As measured after the last step.
        corpora: What it was measured on: corpora that no step trained on, with the digests of
            their credentials. Absent if the training loop measured it by itself.
    """

    metric: ShortText
    goal: Literal["min", "max"]
    value: Annotated[float, Field(allow_inf_nan=False)]
    corpora: Annotated[dict[Name, Digest], Field(min_length=1)] | None = None


def check_held_out(stated: ValidationResult | None, trained: Collection[str]) -> None:
    """Refuse a result on corpora that the run trained on."""
    for corpus in sorted(set(stated.corpora or ()) & set(trained)) if stated else ():
        raise Refused(
            f"corpus {corpus!r} was trained on, so it was not held out",
            where="attestation validation",
        )
