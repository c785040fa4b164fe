"""A corpus that is held out, beside those that a deployment trains on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from govray.data.corpus import build, unsigned_credential
from govray.governance.formats.document import format_time
from govray.governance.policy.credential import Period
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from tests.support.deployment import Deployment

RECORDS = 6


def hold_out(
    here: Deployment,
    corpus: str = "held-out",
    *,
    text: str = "held-out says: a slow green turtle number {} sleeps below the busy fox. ",
    licence: str = "MIT",
) -> Path:
    """Build a corpus in the folder ``validation`` of a deployment, and sign its credential."""
    folder = here.folder / "validation"
    records = ((f"{i:03d}.txt", (text.format(i) * 12).encode()) for i in range(RECORDS))
    built = build(folder, corpus, records)
    valid = Period(
        from_=format_time(here.at - here.lifetime), until=format_time(here.at + here.lifetime)
    )
    credential = unsigned_credential(
        built, license=licence, issuer="issuer", sensitivity="public", valid=valid
    )
    (folder / corpus / "credential.dsse.json").write_bytes(
        credential.seal([here.signers["issuer"]])
    )
    return folder


def judged_trainer(
    here: Deployment, validation: Mapping[str, Any] | None, **changes: Any
) -> GovernedTrainer:
    """A trainer whose run is validated every second step, in this process."""
    value = here.experiment(resources={"num_workers": 1}, checkpoint={"every_steps": 2}, **changes)
    if validation is not None:
        folder = str(here.folder / "validation")
        value["validation"] = {"corpora": folder, "every_steps": 2} | dict(validation)
    return GovernedTrainer(parse_experiment(value, where="test"))
