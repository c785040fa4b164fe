"""From a run's record back to its workers' order, verified at the recorded time.

A replay uses the bytes that the run verified, not what the experiment's paths hold today. It
verifies them again at the time when the run began: what expired since was valid then. It needs no
key and no clock, but the prepared data in the run's storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from govray.data.records_file import PREPARED
from govray.errors import CouldNotCheck, Refused, UsageError
from govray.governance.policy.corpus_routes import Fallback
from govray.governance.policy.credential import Credential, verify_credential
from govray.governance.policy.depth_policy import Policy, verify_policy
from govray.governance.policy.route import Route
from govray.governance.record.prepare_manifest import MANIFEST_FILE, Manifest, verify_manifest
from govray.governance.submission.code_archive import archive_place
from govray.governance.trust.trust_state import TrustState, Verified
from govray.storage.place import Place
from govray.train.inputs.experiment_config import Experiment
from govray.train.inputs.planning import routes_of
from govray.train.inputs.run_record import RunRecord


def prepared_places(run: Place) -> tuple[Place, Place]:
    """Where the data that a run reads may lie: beside it, or beside the search it belongs to."""
    above = run.resolve().parent
    return above / PREPARED, above.parent / PREPARED


def code_storage(run: Place, archive: str) -> Place:
    """Where the archive of a run's working directory lies, as `prepared_places`."""
    above = run.resolve().parent
    return above if archive_place(above, archive).is_file() else above.parent


@dataclass(frozen=True, kw_only=True)
class RecordedInputs:
    """A run's inputs, verified at the time it began.

    Attributes:
        routes: Stream id to route, for the streams that the plan reads; and the routes of later
            phases and fallbacks, by digest.
        fallbacks: Corpus to fallback, of the corpora that the plan reads.
        prepared: Folder with the shards of the manifest.
    """

    record: RunRecord
    experiment: Experiment
    policy: Verified[Policy]
    manifest: Verified[Manifest]
    routes: Mapping[str, Route]
    fallbacks: Mapping[str, Fallback]
    prepared: Place


def recorded_inputs(run: Place, record: RunRecord) -> RecordedInputs:
    """Verify a run's recorded inputs at the recorded time, and find its prepared data.

    Raises:
        UsageError: The run was started from a script, which is not recorded.
        CouldNotCheck: The prepared data is not in the run's storage.
    """
    if record.experiment is None:
        raise UsageError(
            "the run was started from a script, so there is no experiment to run again",
            where=str(run),
            do="Start the script again and compare the weights; to leave a corpus out, give "
            "its trainer exclude=[corpus]",
        )
    at, plan = record.started, record.plan
    trust = TrustState.load(record.root, at=at, delegations=record.delegations)
    policy = verify_policy(trust, record.policy, at=at)
    own = trust.each_key_counts("operator")
    manifest = verify_manifest(own, record.manifest, at=at)
    if manifest.digest != plan.manifest:
        raise Refused("the recorded plan is over another manifest", where=str(run))
    credentials: dict[str, Verified[Credential]] = {
        corpus: verify_credential(trust, data, at=at) for corpus, data in record.credentials.items()
    }
    classes = {c: credential.document.credential_class for c, credential in credentials.items()}
    _, whole = routes_of(policy.document, classes, list(record.groups))
    by_corpus = whole.until(plan.max_steps)
    for stream in plan.streams:
        for planned in stream.corpora:
            route = by_corpus.get(planned.corpus)
            if route is None or route.digest != stream.id:
                raise Refused(
                    "the recorded plan does not follow from policy and credentials",
                    where=f"{run}, corpus {planned.corpus}",
                )
    # In the run's order, which is that of its adapters in the optimizer.
    read = by_corpus.of([c for c in sorted(plan.corpora) if c not in plan.excluded])
    return RecordedInputs(
        record=record,
        experiment=record.experiment,
        policy=policy,
        manifest=manifest,
        routes=read.by_digest,
        fallbacks=read.fallbacks,
        prepared=prepared_folder(run, record),
    )


def prepared_folder(run: Place, record: RunRecord, among: Sequence[Place] | None = None) -> Place:
    """The folder whose manifest is, byte for byte, the recorded one.
    ``among``: where to look; by default where a run has its prepared data."""
    if among is None:
        places = prepared_places(run)
        found: list[Any] = [each for at in places for each in at.glob(f"[!.]*/{MANIFEST_FILE}")]
        among = [each.parent for each in sorted(found)]
    for folder in among:
        if (folder / MANIFEST_FILE).read_bytes() == record.manifest:
            return folder
    raise CouldNotCheck(
        "the data that the run read is not here: no prepared folder has its manifest",
        where=str(prepared_places(run)[0]),
        do="Do this where the run's storage is, or restore the folder; prepared again, it has "
        "another salt and so other rows",
    )
