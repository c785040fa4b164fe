"""``govray schema``: the JSON Schema of what people write."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from govray.cli.output import print_json


class Kind(StrEnum):
    """What there is a schema of."""

    EXPERIMENT = "experiment"
    POLICY = "policy"
    CREDENTIAL = "credential"


def schema(
    kind: Annotated[Kind, typer.Argument(help="What to describe.")],
) -> None:
    """Print the JSON Schema of what people write, for editors."""
    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **_describe(kind)})


def _describe(kind: Kind) -> dict[str, Any]:
    match kind:
        case Kind.EXPERIMENT:
            from govray.train.config import Experiment

            return Experiment.model_json_schema(by_alias=True)
        case Kind.POLICY:
            from govray.governance.policy import Policy

            return Policy.model_json_schema(by_alias=True)
        case Kind.CREDENTIAL:
            from govray.governance.credential import Credential

            return Credential.model_json_schema(by_alias=True)
