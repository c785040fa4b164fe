"""Signing, apart from reading: what the signer refuses, and that it adds nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from govray.errors import Malformed, Refused
from govray.governance.attestation import model_folder
from govray.governance.attestation.signing import UnsignedModel, sign_head
from govray.governance.formats import canonical_json
from tests.support.world import DIGEST, EXECUTION, World


@pytest.fixture
def found(world: World, untouched: Path) -> UnsignedModel:
    return world.unsigned(untouched)


def test_what_is_signed_of_what_was_read_is_the_model_s_own(
    world: World, untouched: Path, found: UnsignedModel
) -> None:
    sent = canonical_json.encode(found.to_json())
    received = UnsignedModel.read(sent, where="the reader's")
    assert received == found
    operator = world.keys.operator
    headed = sign_head(received, EXECUTION, operator)
    for name, content in headed.signed([operator]).items():
        assert content == (untouched / name).read_bytes(), name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: {"commit": canonical_json.sha256(b"x")}, "another commit"),
        (
            lambda found: {
                "claims": found.claims.model_copy(
                    update={
                        "ledger": found.claims.ledger.model_copy(
                            update={"origin": "govray.dev/ledger/other"}
                        )
                    }
                )
            },
            "another run's",
        ),
        (
            lambda found: {
                "claims": found.claims.model_copy(
                    update={"files": {**found.claims.files, model_folder.CHECKPOINT: DIGEST}}
                )
            },
            "not signed yet",
        ),
    ],
)
def test_what_the_reader_may_not_choose(
    change: Callable[[UnsignedModel], dict[str, Any]], said: str, world: World, found: UnsignedModel
) -> None:
    with pytest.raises(Refused, match=said):
        sign_head(found.model_copy(update=change(found)), EXECUTION, world.keys.operator)


@pytest.mark.parametrize(
    "change",
    [
        lambda value: canonical_json.encode(value) + b" ",
        lambda value: canonical_json.encode(value | {"more": 1}),
        lambda value: canonical_json.encode(
            value | {"claims": value["claims"] | {"execution": EXECUTION.to_json()}}
        ),
        lambda value: canonical_json.encode({k: v for k, v in value.items() if k != "commit"}),
        lambda _: b"[" * 10_000,
    ],
    ids=["not canonical", "more", "an execution", "less", "deep"],
)
def test_what_the_reader_sends_is_closed(
    change: Callable[[Any], bytes], found: UnsignedModel
) -> None:
    with pytest.raises(Malformed):
        UnsignedModel.read(change(found.to_json()), where="the reader's")
