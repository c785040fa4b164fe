"""Preparation: the data that runs read, admitted, packed and signed by govray's own code alone.

Nothing that an experiment names is imported here: no entrypoint, optimizer, schedule or callback.
Nor is torch. A tokenizer's file is data. So the operator's key can be in this process, whoever
wrote the experiment.

Invariants:

* A folder's name follows from what its data are made of. A run finds the folder by it.
* Data that are there are read alone: then no key is asked for, and nothing is written.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from govray.data.admission import Prepared, prepare
from govray.data.packing import Progress
from govray.data.records_file import PREPARED
from govray.data.rows.chat import own_template
from govray.data.rows.row_words import load_words
from govray.data.tokenizer import Tokenizer
from govray.errors import Refused, UsageError
from govray.governance.formats import canonical_json
from govray.governance.formats.keys import Signer
from govray.governance.submission.submission import Submission
from govray.storage.place import Place, place
from govray.train.driver.ray_cluster import begun_here
from govray.train.inputs.experiment_config import (
    Data,
    Experiment,
    parse_experiment,
    read_overridden,
)
from govray.train.inputs.monitored import refuse_unwatchable
from govray.train.inputs.planning import check_names
from govray.train.inputs.recorded_inputs import prepared_places
from govray.train.inputs.shared_inputs import Shared, ValidationData
from govray.train.inputs.verified_inputs import Inputs, load_inputs
from govray.train.run_folder.clock import instant
from govray.train.validation.validation_data import (
    refuse_other_rows,
    refuse_overlap,
    validation_inputs,
)

NOT_BY_TEMPLATE = (
    "has a chat template, and it is not used. Conversations are trained by six markers of govray's "
    "own, so the model will know that form alone."
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """An experiment's data, and where they go.

    Attributes:
        storage: Prepared data lie below it.
        resume: The run that goes on.
        submission: Whose run it is.
        pulse: The envelope of the beacon's, where the trust root names one.
        progress: Called as the data to train on are packed.
    """

    experiment: Experiment
    storage: Place
    resume: Place | None = None
    submission: Submission | None = None
    pulse: bytes | None = None
    progress: Progress = lambda done, total: None

    def share(self, at: datetime, signer: Callable[[], Signer]) -> Shared:
        """Verified at one time, prepared once: what several runs can share.

        Args:
            at: Reference time: now, or when the first of the runs began.
            signer: Asked for the operator's key, if something is not prepared yet.
        """
        inputs = self.inputs(at)
        prepared = self.data(inputs, at, signer)
        return Shared(
            inputs=inputs,
            prepared=prepared,
            at=at,
            validation=self.validation(inputs, prepared, at, signer),
            submission=self.submission,
            alone=begun_here(),
        )

    def inputs(self, at: datetime) -> Inputs:
        """The signed inputs, verified. Raises as `load_inputs`, and ``Refused``: the run was
        submitted under another policy."""
        given = self.experiment.governance
        inputs = load_inputs(
            self._corpora,
            place(given.policy),
            place(given.trust_root),
            [place(each) for each in given.delegations],
            [place(each) for each in given.revocations],
            at=at,
            resumed=self.resume,
        )
        due = self.submission.policy if self.submission else None
        if due not in (None, inputs.policy.digest):
            raise Refused(
                f"the run was submitted under the policy {due}, and reads {inputs.policy.digest}",
                where=f"policy {given.policy}",
                do="Submit it again under the policy that is there, or restore the other one",
            )
        return inputs

    def data(self, inputs: Inputs, at: datetime, signer: Callable[[], Signer]) -> Prepared:
        """The data to train on."""
        data = self.experiment.data
        rendered = data.rows == "chat" and data.tokenizer != "bytes"
        if rendered and (own := own_template(Path(data.tokenizer))):
            _log.warning("%s %s", own, NOT_BY_TEMPLATE)
        return self._prepare(self._corpora, inputs, at, signer)

    @property
    def _corpora(self) -> Place:
        return place(self.experiment.data.corpora)

    def validation(
        self, inputs: Inputs, prepared: Prepared, at: datetime, signer: Callable[[], Signer]
    ) -> ValidationData | None:
        """The data that the run is judged by, if there are any: admitted, and new to it."""
        judged = self.experiment.validation
        if judged is None or judged.corpora is None:
            return None
        given = place(judged.corpora)
        held_out = validation_inputs(given, inputs, at=at)
        whole = self.experiment.data.model_copy(update={"reserve": 0.0, "canaries": None})
        alone = replace(
            self,
            experiment=self.experiment.model_copy(update={"data": whole}),
            pulse=None,
            progress=lambda done, total: None,
        )
        found = ValidationData(
            credentials=held_out.credentials,
            prepared=alone._prepare(given, held_out, at, signer),
        )
        manifest = prepared.manifest
        refuse_other_rows(manifest.rows, found.prepared.manifest)
        if not self.resume:
            trained = {each.corpus for each in manifest.corpora} - set(self.experiment.data.exclude)
            refuse_overlap(self._corpora, trained, given, found.corpora)
        return found

    def _prepare(
        self, corpora: Place, inputs: Inputs, at: datetime, signer: Callable[[], Signer]
    ) -> Prepared:
        data, context = self.experiment.data, self.experiment.context
        tokenizer = words(data)
        canaries = data.canaries.by_corpus() if data.canaries else {}
        text = data.rows != "images"
        by_family = bool(data.reserve) and text and data.reserve_by == "family"
        made_of: dict[str, Any] = {
            "credentials": sorted(v.digest for v in inputs.credentials.values()),
            "policy": inputs.policy.digest,
            "tokenizer": tokenizer.digest,
            "context": context,
            "reserve": data.reserve,
            "operators": inputs.operator_keys(at),
        }
        if canaries:
            made_of["canaries"] = {c: each.to_json() for c, each in canaries.items()}
        if by_family:
            made_of["reserve_by"] = data.reserve_by
        if data.reserve and (beacon := inputs.trust.root.beacon):
            made_of["beacon"] = beacon.to_json()
        name = hashlib.sha256(canonical_json.encode(made_of)).hexdigest()[:16]
        folder: Place = self.storage / PREPARED / name
        if self.resume:
            places = [above / name for above in prepared_places(self.resume)]
            folder = next((each for each in places if each.exists()), folder)
        if self.resume and not folder.exists():
            raise Refused(
                "the prepared data that the run reads are gone",
                where=str(folder),
                do="Restore the folder; preparing again would draw another reserve",
            )

        def operator() -> Signer:
            try:
                found = signer()
            except UsageError as error:
                why = f"{error.where}: {error.what}" if error.where else error.what
                raise UsageError(
                    f"the data are not prepared, and nothing can sign them here: {why}",
                    where=str(folder),
                    do="Run `govray prepare EXPERIMENT` where the operator's key is",
                ) from error
            inputs.check_operator(found.public_key)
            return found

        return prepare(
            corpora,
            folder,
            credentials=inputs.credentials,
            policy=inputs.policy.document,
            tokenizer=tokenizer,
            context=context,
            reserve_share=data.reserve,
            salt=secrets.token_bytes(32),
            pulse=self.pulse,
            signer=operator,
            trust=inputs.trust,
            at=at,
            max_quarantined=self.experiment.governance.max_quarantined,
            canaries=canaries,
            rows=data.rows,
            by_family=by_family,
            progress=self.progress,
        )


def words(data: Data) -> Tokenizer:
    """The tokenizer that the data are packed with: a file's, or bytes."""
    return load_words(None if data.tokenizer == "bytes" else Path(data.tokenizer), data.rows)


def read_data_of(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment file for its data; the trials of a search share those of its experiment.
    ``overrides``: as for `read_experiment`."""
    value, source = read_overridden(path, overrides)
    if isinstance(value, dict):
        value = {name: each for name, each in value.items() if name != "search"}
    return parse_experiment(value, where=str(path), source=source)


def prepare_experiment(
    experiment: Experiment,
    signer: Signer,
    *,
    submission: Submission | None = None,
    pulse: bytes | None = None,
    progress: Progress = lambda done, total: None,
) -> Shared:
    """Verify, admit, pack and sign an experiment's data, once for equal inputs. Needs Ray.

    The experiment's ``attestation_key`` is not used. It may name a program, and the experiment may
    be somebody else's.

    Args:
        signer: The operator's key.
        submission: Whose run it is for.
        pulse: The envelope of the beacon's, where the trust root names one.
        progress: Called with (records done, records in all).

    Raises:
        GovrayError: As a run would before it trains, in what follows from data and policy alone.
    """
    made = Preparation(
        experiment=experiment,
        storage=place(experiment.storage_path).resolve(),
        submission=submission,
        pulse=pulse,
        progress=progress,
    )
    at, data = instant(), experiment.data
    inputs = made.inputs(at)
    policy = inputs.policy.document
    decisions = {corpus: policy.decide(each) for corpus, each in inputs.classes.items()}
    check_names(  # packing may take hours
        {c: each.label for c, each in decisions.items() if not each.quarantined},
        profiles=policy.profiles,
        quotas=data.rows_per_step,
        exclude=data.exclude,
        mixture=data.mixture,
    )
    shared = made.share(at, lambda: signer)
    manifest = shared.prepared.manifest
    experiment.check_rows(manifest.rows)
    rules = {corpus: each.rules for corpus, each in decisions.items()}
    refuse_unwatchable(policy, rules, manifest, data.exclude)
    return shared
