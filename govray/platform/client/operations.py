"""What a service can be asked: a method for each operation.

Written by ``python docs/build_client.py``: do not edit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from govray.platform.client import documents
from govray.platform.client.connection import Connection, segment


class Operations(Connection):
    """The operations of a service, over one connection."""

    def check_live(self) -> documents.Probe:
        """Whether the process answers. For everyone.

        It asks nothing else: a store that is away is no reason to restart the service.
        """
        answer: documents.Probe = self.ask("GET", "/v1/live", documents.Probe)
        return answer

    def check_ready(self) -> documents.Probe:
        """Whether requests should be sent here: the store answers, its secret is there, and so is
        room on the disk. For everyone.

        503 otherwise, with what is missing.
        """
        answer: documents.Probe = self.ask("GET", "/v1/ready", documents.Probe)
        return answer

    def get_health(self) -> documents.Health:
        """Whether the service can answer: its store is asked. For everyone."""
        answer: documents.Health = self.ask("GET", "/v1/health", documents.Health)
        return answer

    def get_sign_in(self) -> documents.SignIn:
        """Where to sign in. For everyone; the device flow (RFC 8628) begins here."""
        answer: documents.SignIn = self.ask("GET", "/v1/sign-in", documents.SignIn)
        return answer

    def list_audit_entries(
        self,
        *,
        user: str | None = None,
        subject: str | None = None,
        action: str | None = None,
        outcome: Literal["done", "refused"] | None = None,
    ) -> Iterator[documents.Entry]:
        """The audit log, the latest first. For admins and auditors.

        Those of a workspace or project read what was done to it, and to what was submitted to
        it.

        Args:
            user: Of this user.
            subject: Entries about this.
            action: Entries of this action.
            outcome: Entries of this outcome.
        """
        return self.pages(
            "/v1/audit",
            documents.Entry,
            query={"user": user, "subject": subject, "action": action, "outcome": outcome},
        )

    def get_usage(
        self, *, by: Literal["project", "user", "workspace"] | None = None, since: str | None = None
    ) -> documents.Usage:
        """Governed accelerator-hours, submissions and attested artifacts, of what you may read.

        A project that nobody made is in no workspace, and counts for the name ``-`` there.

        Args:
            by: What usage is counted by.
            since: Trials that started, and submissions made, then or later.
        """
        answer: documents.Usage = self.ask(
            "GET", "/v1/usage", documents.Usage, query={"by": by, "since": since}
        )
        return answer

    def list_experiments(
        self,
        *,
        state: documents.ExperimentState | None = None,
        project: str | None = None,
        user: str | None = None,
        name: str | None = None,
        tag: str | None = None,
    ) -> Iterator[documents.Experiment]:
        """The experiments that you may read, the latest first.

        Args:
            state: In this state.
            project: Of this project.
            user: Of this user.
            name: Of this name.
            tag: A tag that they have.
        """
        return self.pages(
            "/v1/experiments",
            documents.Experiment,
            query={"state": state, "project": project, "user": user, "name": name, "tag": tag},
        )

    def submit_experiment(
        self,
        *,
        file: str | dict[str, Any] | None = None,
        fork_of: str | None = None,
        set: list[str] | None = None,
        project: str | None = None,
        pool: str | None = None,
        priority: int | None = None,
        tags: list[str] | None = None,
        archive: str | None = None,
        policy: str | None = None,
        idempotency_key: str | None = None,
    ) -> documents.QueueEntry:
        """Put an experiment into the queue. It is checked against the whole schema first.

        Errors of the file name the line and the field. Nothing runs yet: the entry waits until
        the cluster's reconciler has room for it.

        Args:
            file: The experiment file, as its text or as the object that it stands for. With a
                `search` section it is a search.
            fork_of: A submission, in the place of a file. What you leave out is as it has it.
            set: Overrides of the file: `optimizer.lr=0.001`; `+seed=18` adds what it lacks.
            project: The project that it counts for; `default` if left out.
            pool: The pool of nodes to run in; as the file says, or `default`.
            priority: Of a pool's queue the highest goes first; as the file says, or 0.
            tags: Words to find it by: letters, digits and `_.:/-`.
            archive: Digest of a working directory on the cluster's storage; by default the
                cluster's own.
            policy: Digest of the signed depth policy that you expect it to have.
            idempotency_key: Of your choice, new for each submission. The same request with the
                same key answers the same submission, and makes no second one.
        """
        answer: documents.QueueEntry = self.ask(
            "POST",
            "/v1/experiments",
            documents.QueueEntry,
            header={"Idempotency-Key": idempotency_key},
            body={
                "file": file,
                "forkOf": fork_of,
                "set": set,
                "project": project,
                "pool": pool,
                "priority": priority,
                "tags": tags,
                "archive": archive,
                "policy": policy,
            },
        )
        return answer

    def get_experiment(self, experiment: str) -> documents.Experiment:
        """One experiment.

        Args:
            experiment: An experiment's id.
        """
        answer: documents.Experiment = self.ask(
            "GET", f"/v1/experiments/{segment(experiment)}", documents.Experiment
        )
        return answer

    def list_trials(
        self,
        *,
        experiment: str | None = None,
        state: documents.TrialState | None = None,
        policy: str | None = None,
    ) -> Iterator[documents.Trial]:
        """The trials that you may read, the latest first.

        Args:
            experiment: An experiment's id.
            state: In this state.
            policy: Digest of a signed depth policy.
        """
        return self.pages(
            "/v1/trials",
            documents.Trial,
            query={"experiment": experiment, "state": state, "policy": policy},
        )

    def get_trial(self, trial: str) -> documents.Trial:
        """One trial.

        Args:
            trial: A trial's id.
        """
        answer: documents.Trial = self.ask("GET", f"/v1/trials/{segment(trial)}", documents.Trial)
        return answer

    def list_metrics(
        self,
        trial: str,
        *,
        group: str | None = None,
        name: str | None = None,
        archived: bool | None = None,
    ) -> Iterator[documents.Metric]:
        """What a trial measured, by group, name and step.

        Args:
            trial: A trial's id.
            group: A layer group, such as `block.3`; of metrics, the group that they are in.
            name: Of this name.
            archived: Also what a restart or rollback superseded.
        """
        return self.pages(
            f"/v1/trials/{segment(trial)}/metrics",
            documents.Metric,
            query={"group": group, "name": name, "archived": archived},
        )

    def list_decisions(
        self, trial: str, *, kind: str | None = None
    ) -> Iterator[documents.Decision]:
        """What was decided during a trial, and why.

        Args:
            trial: A trial's id.
            kind: Decisions of this kind.
        """
        return self.pages(
            f"/v1/trials/{segment(trial)}/decisions", documents.Decision, query={"kind": kind}
        )

    def list_checkpoints(self, trial: str) -> Iterator[documents.Checkpoint]:
        """A trial's checkpoints. One that is being written, or failed, is not among them.

        Args:
            trial: A trial's id.
        """
        return self.pages(f"/v1/trials/{segment(trial)}/checkpoints", documents.Checkpoint)

    def list_pins(self, trial: str) -> documents.CheckpointPins:
        """Which checkpoints of a trial stay whatever its rules say, and why.

        Args:
            trial: A trial's id.
        """
        answer: documents.CheckpointPins = self.ask(
            "GET", f"/v1/trials/{segment(trial)}/pins", documents.CheckpointPins
        )
        return answer

    def pin_checkpoint(
        self, step: int, trial: str, *, reason: str | None = None
    ) -> documents.CheckpointPin:
        """Keep a checkpoint, whatever the run's rules say. Once it is pinned, again changes
        nothing.

        Args:
            step: The checkpoint's step.
            trial: A trial's id.
            reason: A line for who reads it later.
        """
        answer: documents.CheckpointPin = self.ask(
            "POST",
            f"/v1/trials/{segment(trial)}/checkpoints/{segment(step)}:pin",
            documents.CheckpointPin,
            body={"reason": reason},
        )
        return answer

    def unpin_checkpoint(self, step: int, trial: str) -> documents.CheckpointPin:
        """Let the run's rules decide about a checkpoint again. It goes with the next commit, if
        so.

        Args:
            step: The checkpoint's step.
            trial: A trial's id.
        """
        answer: documents.CheckpointPin = self.ask(
            "POST",
            f"/v1/trials/{segment(trial)}/checkpoints/{segment(step)}:unpin",
            documents.CheckpointPin,
        )
        return answer

    def check_experiment(
        self,
        *,
        file: str | dict[str, Any] | None = None,
        fork_of: str | None = None,
        set: list[str] | None = None,
        project: str | None = None,
        pool: str | None = None,
        priority: int | None = None,
        tags: list[str] | None = None,
        archive: str | None = None,
        policy: str | None = None,
    ) -> documents.ExperimentCheck:
        """Say what an experiment would take and which policy applies. Nothing is submitted.

        Args:
            file: The experiment file, as its text or as the object that it stands for. With a
                `search` section it is a search.
            fork_of: A submission, in the place of a file. What you leave out is as it has it.
            set: Overrides of the file: `optimizer.lr=0.001`; `+seed=18` adds what it lacks.
            project: The project that it counts for; `default` if left out.
            pool: The pool of nodes to run in; as the file says, or `default`.
            priority: Of a pool's queue the highest goes first; as the file says, or 0.
            tags: Words to find it by: letters, digits and `_.:/-`.
            archive: Digest of a working directory on the cluster's storage; by default the
                cluster's own.
            policy: Digest of the signed depth policy that you expect it to have.
        """
        answer: documents.ExperimentCheck = self.ask(
            "POST",
            "/v1/experiments:check",
            documents.ExperimentCheck,
            body={
                "file": file,
                "forkOf": fork_of,
                "set": set,
                "project": project,
                "pool": pool,
                "priority": priority,
                "tags": tags,
                "archive": archive,
                "policy": policy,
            },
        )
        return answer

    def list_submissions(
        self,
        *,
        state: documents.SubmissionState | None = None,
        project: str | None = None,
        user: str | None = None,
        name: str | None = None,
        pool: str | None = None,
        tag: str | None = None,
        archived: bool | None = None,
    ) -> Iterator[documents.SubmissionItem]:
        """What was submitted, the latest first, without the files.

        Args:
            state: In this state.
            project: Of this project.
            user: Of this user.
            name: Of this name.
            pool: In this pool.
            tag: With this tag.
            archived: Those that were archived, in place of the others.
        """
        return self.pages(
            "/v1/submissions",
            documents.SubmissionItem,
            query={
                "state": state,
                "project": project,
                "user": user,
                "name": name,
                "pool": pool,
                "tag": tag,
                "archived": archived,
            },
        )

    def get_submission(self, submission: str) -> documents.QueueEntry:
        """One submission, with its file, its place in the queue, and why it is in its state.

        Args:
            submission: A submission's id.
        """
        answer: documents.QueueEntry = self.ask(
            "GET", f"/v1/submissions/{segment(submission)}", documents.QueueEntry
        )
        return answer

    def tag_submission(self, submission: str, *, tags: list[str]) -> documents.QueueEntry:
        """Replace a submission's tags. Nothing else of it can be changed.

        Args:
            submission: A submission's id.
            tags: Words to find it by: letters, digits and `_.:/-`.
        """
        answer: documents.QueueEntry = self.ask(
            "PATCH",
            f"/v1/submissions/{segment(submission)}",
            documents.QueueEntry,
            body={"tags": tags},
        )
        return answer

    def stop_submission(self, submission: str) -> documents.QueueEntry:
        """Stop it after its current step and a commit; what waits leaves the queue.

        Args:
            submission: A submission's id.
        """
        answer: documents.QueueEntry = self.ask(
            "POST", f"/v1/submissions/{segment(submission)}:stop", documents.QueueEntry
        )
        return answer

    def kill_submission(self, submission: str) -> documents.QueueEntry:
        """End it at once. Steps since its last checkpoint are lost.

        Args:
            submission: A submission's id.
        """
        answer: documents.QueueEntry = self.ask(
            "POST", f"/v1/submissions/{segment(submission)}:kill", documents.QueueEntry
        )
        return answer

    def resume_submission(self, submission: str) -> documents.QueueEntry:
        """Put what was stopped, killed or failed back into the queue. It goes on from its commit.

        Args:
            submission: A submission's id.
        """
        answer: documents.QueueEntry = self.ask(
            "POST", f"/v1/submissions/{segment(submission)}:resume", documents.QueueEntry
        )
        return answer

    def archive_submission(self, submission: str) -> documents.QueueEntry:
        """Take what has ended out of the list. Nothing is deleted.

        Args:
            submission: A submission's id.
        """
        answer: documents.QueueEntry = self.ask(
            "POST", f"/v1/submissions/{segment(submission)}:archive", documents.QueueEntry
        )
        return answer

    def unarchive_submission(self, submission: str) -> documents.QueueEntry:
        """Put it back into the list.

        Args:
            submission: A submission's id.
        """
        answer: documents.QueueEntry = self.ask(
            "POST", f"/v1/submissions/{segment(submission)}:unarchive", documents.QueueEntry
        )
        return answer

    def get_archive(self, digest: str) -> documents.Archive:
        """Whether the archive of a digest is there, and whole. 404: send it.

        Args:
            digest: The SHA-256 of the archive's bytes.
        """
        answer: documents.Archive = self.ask(
            "GET", f"/v1/archives/{segment(digest)}", documents.Archive
        )
        return answer

    def put_archive(self, digest: str, data: bytes) -> documents.Archive:
        """Send the archive of a working directory, once for each content.

        It is there when the answer says so: whole, with its digest, and checked. Before,
        nothing has its name.

        Args:
            digest: The SHA-256 of the archive's bytes.
        """
        answer: documents.Archive = self.ask(
            "PUT",
            f"/v1/archives/{segment(digest)}",
            documents.Archive,
            data=data,
            kind="application/zip",
        )
        return answer

    def get_tags(self, experiment: str) -> documents.ExperimentTags:
        """The tags of an experiment, sorted.

        Args:
            experiment: An experiment's id.
        """
        answer: documents.ExperimentTags = self.ask(
            "GET", f"/v1/experiments/{segment(experiment)}/tags", documents.ExperimentTags
        )
        return answer

    def put_tags(self, experiment: str, *, tags: list[str]) -> documents.ExperimentTags:
        """Replace the tags of an experiment. An empty list removes them.

        Args:
            experiment: An experiment's id.
            tags: All of them, at most 20. A tag is up to 64 letters, digits, . _ -.
        """
        answer: documents.ExperimentTags = self.ask(
            "PUT",
            f"/v1/experiments/{segment(experiment)}/tags",
            documents.ExperimentTags,
            body={"tags": tags},
        )
        return answer

    def download_metrics(
        self, trial: str, *, group: str | None = None, name: str | None = None
    ) -> str:
        """All numbers of a trial that count, as CSV. What a restart superseded is not in it.

        A group or name that a spreadsheet would take for a formula has an apostrophe before it.

        Args:
            trial: A trial's id.
            group: Only this group.
            name: Only this name.
        """
        answer: str = self.ask(
            "GET",
            f"/v1/trials/{segment(trial)}/metrics.csv",
            str,
            query={"group": group, "name": name},
        )
        return answer

    def download_decisions(self, trial: str) -> list[documents.Decision]:
        """All decisions of a trial, each with its reason and evidence, by source and number.

        Args:
            trial: A trial's id.
        """
        answer: list[documents.Decision] = self.ask(
            "GET", f"/v1/trials/{segment(trial)}/decisions.json", list[documents.Decision]
        )
        return answer

    def download_config(self, experiment: str) -> str:
        """What an experiment asked for, as YAML. It is what the run recorded, defaults included.

        Args:
            experiment: An experiment's id.
        """
        answer: str = self.ask("GET", f"/v1/experiments/{segment(experiment)}/config.yaml", str)
        return answer

    def list_logs(self, trial: str) -> documents.Logs:
        """The logs that a trial's folder keeps; none where the folder is out of reach. For staff.

        Args:
            trial: A trial's id.
        """
        answer: documents.Logs = self.ask(
            "GET", f"/v1/trials/{segment(trial)}/logs", documents.Logs
        )
        return answer

    def get_log(
        self,
        name: str,
        trial: str,
        *,
        search: str | None = None,
        from_: int | None = None,
        lines: int | None = None,
    ) -> documents.Part:
        """Lines of a log. `next` is where the next part begins. For staff.

        Args:
            name: Of the log.
            trial: A trial's id.
            search: Only lines with this text, in any case.
            from_: Begin at this byte. Without it: the last lines, or of a search the first.
            lines: Lines at most.
        """
        answer: documents.Part = self.ask(
            "GET",
            f"/v1/trials/{segment(trial)}/logs/{segment(name)}",
            documents.Part,
            query={"search": search, "from": from_, "lines": lines},
        )
        return answer

    def list_models(self) -> Iterator[documents.Model | documents.ModelName]:
        """The models of which the caller may see a version, by name."""
        return self.pages("/v1/models", documents.Model | documents.ModelName)

    def get_model(self, model: str) -> documents.Model | documents.ModelName:
        """One model.

        Args:
            model: A model's name.
        """
        answer: documents.Model | documents.ModelName = self.ask(
            "GET", f"/v1/models/{segment(model)}", documents.Model | documents.ModelName
        )
        return answer

    def list_versions(self, model: str) -> Iterator[documents.Version | documents.VersionReference]:
        """The versions of a model that the caller may see, the highest first.

        Args:
            model: A model's name.
        """
        return self.pages(
            f"/v1/models/{segment(model)}/versions", documents.Version | documents.VersionReference
        )

    def register_version(
        self,
        model: str,
        *,
        version: str,
        attestation: str,
        labels: dict[str, Any] | None = None,
        metrics: dict[str, Any] | None = None,
        notes: str | None = None,
    ) -> documents.Version:
        """Make a version of an attestation that the store holds; the model too, if it is new.

        The store holds an attestation only if it was verified. `govray model register` verifies
        and indexes a folder first.

        Args:
            model: A model's name.
        """
        answer: documents.Version = self.ask(
            "POST",
            f"/v1/models/{segment(model)}/versions",
            documents.Version,
            body={
                "version": version,
                "attestation": attestation,
                "labels": labels,
                "metrics": metrics,
                "notes": notes,
            },
        )
        return answer

    def get_version(
        self, model: str, version: str
    ) -> documents.VersionWithHistory | documents.VersionReference:
        """One version; for staff with its history.

        Args:
            model: A model's name.
            version: A semantic version: `1.4.0`.
        """
        answer: documents.VersionWithHistory | documents.VersionReference = self.ask(
            "GET",
            f"/v1/models/{segment(model)}/versions/{segment(version)}",
            documents.VersionWithHistory | documents.VersionReference,
        )
        return answer

    def annotate_version(
        self,
        model: str,
        version: str,
        *,
        labels: dict[str, Any] | None = None,
        notes: str | None = None,
    ) -> documents.Version:
        """Replace the labels or notes of a version. Nothing else of it can be changed.

        Args:
            model: A model's name.
            version: A semantic version: `1.4.0`.
        """
        answer: documents.Version = self.ask(
            "PATCH",
            f"/v1/models/{segment(model)}/versions/{segment(version)}",
            documents.Version,
            body={"labels": labels, "notes": notes},
        )
        return answer

    def promote_version(
        self, model: str, version: str, *, stage: Literal["staging", "production", "archived"]
    ) -> documents.Promoted:
        """Move a version to a stage, if all gates before it hold.

        What fails is in `detail`, all of it, and nothing is changed. A version in production is
        archived when another takes its place.

        Args:
            model: A model's name.
            version: A semantic version: `1.4.0`.
        """
        answer: documents.Promoted = self.ask(
            "POST",
            f"/v1/models/{segment(model)}/versions/{segment(version)}:promote",
            documents.Promoted,
            body={"stage": stage},
        )
        return answer

    def get_version_lineage(self, model: str, version: str) -> documents.Lineage:
        """Which data trained which layers of this version. A supplier sees its own corpora's rows.

        Args:
            model: A model's name.
            version: A semantic version: `1.4.0`.
        """
        answer: documents.Lineage = self.ask(
            "GET",
            f"/v1/models/{segment(model)}/versions/{segment(version)}/lineage",
            documents.Lineage,
        )
        return answer

    def get_version_layer(self, model: str, version: str, group: str) -> documents.Lineage:
        """One layer group of this version: every corpus in it.

        Args:
            model: A model's name.
            version: A semantic version: `1.4.0`.
            group: A layer group, such as `block.3`; of metrics, the group that they are in.
        """
        answer: documents.Lineage = self.ask(
            "GET",
            f"/v1/models/{segment(model)}/versions/{segment(version)}/layers/{segment(group)}",
            documents.Lineage,
        )
        return answer

    def get_attestation_lineage(self, digest: str) -> documents.Lineage:
        """The same, of the model that an attestation is about.

        Args:
            digest: A digest: `sha256:` and 64 hex digits, or these alone.
        """
        answer: documents.Lineage = self.ask(
            "GET", f"/v1/attestations/{segment(digest)}/lineage", documents.Lineage
        )
        return answer

    def get_attestation_layer(self, digest: str, group: str) -> documents.Lineage:
        """One layer group of the model that an attestation is about.

        Args:
            digest: A digest: `sha256:` and 64 hex digits, or these alone.
            group: A layer group, such as `block.3`; of metrics, the group that they are in.
        """
        answer: documents.Lineage = self.ask(
            "GET", f"/v1/attestations/{segment(digest)}/layers/{segment(group)}", documents.Lineage
        )
        return answer

    def list_corpora(self, *, supplier: str | None = None) -> Iterator[documents.CorpusItem]:
        """The corpora that you may read about, by name.

        Args:
            supplier: Of this supplier only.
        """
        return self.pages("/v1/corpora", documents.CorpusItem, query={"supplier": supplier})

    def get_corpus(self, corpus: str) -> documents.CorpusAnswer:
        """A corpus: its credentials, and which models it trained, in which layers and steps.

        Args:
            corpus: A corpus's name.
        """
        answer: documents.CorpusAnswer = self.ask(
            "GET", f"/v1/corpora/{segment(corpus)}", documents.CorpusAnswer
        )
        return answer

    def get_record(self, sha256: str, *, proofs: int | None = None) -> documents.RecordAnswer:
        """Where the record with this SHA-256 stands.

        Args:
            sha256: A SHA-256 in hex.
            proofs: Steps of each sighting to add a proof for.
        """
        answer: documents.RecordAnswer = self.ask(
            "GET",
            f"/v1/records/{segment(sha256)}",
            documents.RecordAnswer,
            query={"proofs": proofs},
        )
        return answer

    def search_records(
        self, *, text: str | None = None, content: str | None = None, proofs: int | None = None
    ) -> documents.RecordAnswer:
        """Where the record with exactly this text, or these bytes, stands.

        Args:
            text: Encoded as UTF-8.
            content: The bytes, in base64.
            proofs: Steps of each sighting to add a proof for.
        """
        answer: documents.RecordAnswer = self.ask(
            "POST",
            "/v1/records:search",
            documents.RecordAnswer,
            query={"proofs": proofs},
            body={"text": text, "content": content},
        )
        return answer

    def get_ledger(self, run: str) -> documents.LedgerAnswer:
        """The signed head of a run's ledger.

        Args:
            run: A run's name.
        """
        answer: documents.LedgerAnswer = self.ask(
            "GET", f"/v1/ledgers/{segment(run)}", documents.LedgerAnswer
        )
        return answer

    def get_ledger_checkpoint(self, run: str) -> str:
        """The signed note itself, as it was signed.

        Args:
            run: A run's name.
        """
        answer: str = self.ask("GET", f"/v1/ledgers/{segment(run)}/checkpoint", str)
        return answer

    def get_ledger_tile(self, run: str, path: str) -> bytes:
        """A tile of hashes, or a bundle of entries, as it lies on storage. Bundles are for staff.

        Args:
            run: A run's name.
            path: A tile's path, as C2SP tlog-tiles has it.
        """
        answer: bytes = self.ask(
            "GET", f"/v1/ledgers/{segment(run)}/tile/{segment(path, slashes=True)}", bytes
        )
        return answer

    def get_ledger_entry(self, run: str, index: int) -> dict[str, Any]:
        """One leaf, its exact bytes, checked against the signed root. For staff.

        Args:
            run: A run's name.
            index: A leaf's index, from 0.
        """
        answer: dict[str, Any] = self.ask(
            "GET", f"/v1/ledgers/{segment(run)}/entries/{segment(index)}", dict[str, Any]
        )
        return answer

    def get_inclusion_proof(
        self, run: str, index: int, *, size: int | None = None
    ) -> documents.InclusionProof:
        """That a leaf stands in the ledger of ``size`` leaves; by default that of the checkpoint.

        Args:
            run: A run's name.
            index: A leaf's index, from 0.
            size: The size that the proof is for; by default the ledger's.
        """
        answer: documents.InclusionProof = self.ask(
            "GET",
            f"/v1/ledgers/{segment(run)}/proofs/inclusion",
            documents.InclusionProof,
            query={"index": index, "size": size},
        )
        return answer

    def get_consistency_proof(
        self, run: str, first: int, *, second: int | None = None
    ) -> documents.ConsistencyProof:
        """That an earlier state of the ledger is a beginning of a later one.

        Args:
            run: A run's name.
            first: The smaller size of the ledger, in leaves.
            second: The larger size; by default the ledger's.
        """
        answer: documents.ConsistencyProof = self.ask(
            "GET",
            f"/v1/ledgers/{segment(run)}/proofs/consistency",
            documents.ConsistencyProof,
            query={"first": first, "second": second},
        )
        return answer

    def list_attestations(
        self, *, run: str | None = None, name: str | None = None
    ) -> Iterator[documents.AttestationItem]:
        """The attestations that you may read, the newest first.

        Args:
            run: A run's name.
            name: Of this name.
        """
        return self.pages(
            "/v1/attestations", documents.AttestationItem, query={"run": run, "name": name}
        )

    def find_attestation_by_subject(self, sha256: str) -> documents.Subjects:
        """The attestations about a file, by the file's SHA-256. A supplier finds public ones.

        Args:
            sha256: SHA-256 of the file, 64 hex digits.
        """
        answer: documents.Subjects = self.ask(
            "GET", "/v1/attestations:by-subject", documents.Subjects, query={"sha256": sha256}
        )
        return answer

    def get_attestation(self, digest: str) -> bytes:
        """The exact bytes of an attestation, for those who may read it whole.

        Args:
            digest: A digest: `sha256:` and 64 hex digits, or these alone.
        """
        answer: bytes = self.ask("GET", f"/v1/attestations/{segment(digest)}", bytes)
        return answer

    def verify_attestation(self, data: bytes) -> documents.CheckAnswer:
        """What of the verifier's sixteen steps an uploaded envelope alone shows.

        It is checked against the newest version here of each trust root that you may read a
        version of. The steps that need the model's files are named and not checked. Nothing is
        stored.
        """
        answer: documents.CheckAnswer = self.ask(
            "POST",
            "/v1/attestations:verify",
            documents.CheckAnswer,
            data=data,
            kind="application/vnd.dsse.envelope.v1+json",
        )
        return answer

    def list_policies(self, *, name: str | None = None) -> Iterator[documents.PolicyItem]:
        """The policies that you may read, by name and version.

        Args:
            name: Of this name.
        """
        return self.pages("/v1/policies", documents.PolicyItem, query={"name": name})

    def compare_policies(
        self, from_: str, to: str, *, blocks: int | None = None
    ) -> documents.DiffAnswer:
        """The classes of data that two policies treat differently.

        Args:
            from_: Digest of the policy that is replaced.
            to: Digest of the policy that takes its place.
            blocks: For a model of this many blocks.
        """
        answer: documents.DiffAnswer = self.ask(
            "GET",
            "/v1/policies:diff",
            documents.DiffAnswer,
            query={"from": from_, "to": to, "blocks": blocks},
        )
        return answer

    def get_policy(self, digest: str) -> bytes:
        """The exact bytes of a signed policy.

        Args:
            digest: A digest: `sha256:` and 64 hex digits, or these alone.
        """
        answer: bytes = self.ask("GET", f"/v1/policies/{segment(digest)}", bytes)
        return answer

    def explain_policy(
        self,
        digest: str,
        *,
        license: str,
        corpus: str | None = None,
        license_category: Literal[
            "public_domain", "permissive", "copyleft_limited", "copyleft", "commercial", "unknown"
        ]
        | None = None,
        jurisdiction: str | None = None,
        sensitivity: Literal["public", "internal", "confidential", "restricted"] | None = None,
        use: Literal["commercial", "non_commercial", "academic_only", "unspecified"] | None = None,
        blocks: int | None = None,
        attestation: str | None = None,
    ) -> documents.ExplanationAnswer:
        """Which rules decide each layer group's weight for one class of data.

        Args:
            digest: A digest: `sha256:` and 64 hex digits, or these alone.
            license_category: Needed where it does not follow from the licence.
            attestation: Or for the layer groups of this attested model.
        """
        answer: documents.ExplanationAnswer = self.ask(
            "POST",
            f"/v1/policies/{segment(digest)}:explain",
            documents.ExplanationAnswer,
            body={
                "license": license,
                "corpus": corpus,
                "licenseCategory": license_category,
                "jurisdiction": jurisdiction,
                "sensitivity": sensitivity,
                "use": use,
                "blocks": blocks,
                "attestation": attestation,
            },
        )
        return answer

    def list_trust_roots(self) -> Iterator[documents.TrustRootItem]:
        """The trust roots that attestations here were verified against."""
        return self.pages("/v1/trust-roots", documents.TrustRootItem)

    def get_trust_root(self, digest: str) -> bytes:
        """The exact bytes of a trust root: to compare with yours, not to trust because it is here.

        Args:
            digest: A digest: `sha256:` and 64 hex digits, or these alone.
        """
        answer: bytes = self.ask("GET", f"/v1/trust-roots/{segment(digest)}", bytes)
        return answer

    def get_version_memorization(self, model: str, version: str) -> documents.MemorizationAnswer:
        """What monitor and audits stated of this version.

        Args:
            model: A model's name.
            version: A semantic version: `1.4.0`.
        """
        answer: documents.MemorizationAnswer = self.ask(
            "GET",
            f"/v1/models/{segment(model)}/versions/{segment(version)}/memorization",
            documents.MemorizationAnswer,
        )
        return answer

    def get_attestation_memorization(self, digest: str) -> documents.MemorizationAnswer:
        """What monitor and audits stated of the model that an attestation is about.

        Args:
            digest: A digest: `sha256:` and 64 hex digits, or these alone.
        """
        answer: documents.MemorizationAnswer = self.ask(
            "GET", f"/v1/attestations/{segment(digest)}/memorization", documents.MemorizationAnswer
        )
        return answer

    def open_case(
        self,
        *,
        contact: str,
        model: str | None = None,
        text: str | None = None,
        content: str | None = None,
        sources: list[str] | None = None,
    ) -> documents.ReceivedCase:
        """Ask whether a work was used. Without a token only where the operator allows it.

        What you send is kept until the case is closed. Then its SHA-256 stays.

        Args:
            contact: Who asks, and where to answer. Staff of the service read it.
            model: A registered model, in all versions. Without it: all public models.
            text: The work, or a part of it. Kept until the case is closed.
            content: A file's bytes, in base64, in place of a text.
            sources: URLs or domains, in place of a text. Domains are looked for.
        """
        answer: documents.ReceivedCase = self.ask(
            "POST",
            "/v1/cases",
            documents.ReceivedCase,
            body={
                "contact": contact,
                "model": model,
                "text": text,
                "content": content,
                "sources": sources,
            },
        )
        return answer

    def list_cases(
        self, *, state: documents.CaseState | None = None
    ) -> Iterator[documents.CaseItem]:
        """The cases that you may read, the latest first. For staff and auditors.

        Args:
            state: In this state.
        """
        return self.pages("/v1/cases", documents.CaseItem, query={"state": state})

    def get_case(self, case: str) -> documents.StaffCase:
        """A case with what was found for it. For staff and auditors.

        Args:
            case: The case's number.
        """
        answer: documents.StaffCase = self.ask(
            "GET", f"/v1/cases/{segment(case)}", documents.StaffCase
        )
        return answer

    def get_case_standing(
        self, case: str, *, govray_case_key: str | None = None
    ) -> documents.CaseStanding:
        """How a case stands. For its requester, by the key, and for who reads the case.

        Args:
            case: The case's number.
            govray_case_key: The requester's key, from the answer that gave the number.
        """
        answer: documents.CaseStanding = self.ask(
            "GET",
            f"/v1/cases/{segment(case)}/standing",
            documents.CaseStanding,
            header={"Govray-Case-Key": govray_case_key},
        )
        return answer

    def get_case_answer(self, case: str, *, govray_case_key: str | None = None) -> bytes:
        """The signed answer. For the requester, by the key, and for who reads the case.

        Args:
            case: The case's number.
            govray_case_key: The requester's key, from the answer that gave the number.
        """
        answer: bytes = self.ask(
            "GET",
            f"/v1/cases/{segment(case)}/answer",
            bytes,
            header={"Govray-Case-Key": govray_case_key},
        )
        return answer

    def search_case(self, case: str) -> documents.StaffCase:
        """Look into the recorded data for a case. For admins and data stewards.

        The requester is told nothing of it. The first search in a corpus reads all its records,
        and may take minutes.

        Args:
            case: The case's number.
        """
        answer: documents.StaffCase = self.ask(
            "POST", f"/v1/cases/{segment(case)}:search", documents.StaffCase
        )
        return answer

    def answer_case(self, case: str, *, release: list[str] | None = None) -> documents.StaffCase:
        """Sign the answer, which the requester sees from now on. For admins and data stewards.

        Args:
            case: The case's number.
            release: Names of corpora. Of all others their class is told, and no name.
        """
        answer: documents.StaffCase = self.ask(
            "POST",
            f"/v1/cases/{segment(case)}:answer",
            documents.StaffCase,
            body={"release": release},
        )
        return answer

    def decide_case(
        self,
        case: str,
        *,
        decision: Literal["removed", "revoked", "refused", "nothing_found"],
        reason: str,
    ) -> documents.StaffCase:
        """Decide on a case that is answered. For admins and data stewards.

        `refused` and `nothing_found` close it. The others wait for a version that shows them.

        Args:
            case: The case's number.
            decision: `removed`: an adapter is deleted. `revoked`: the corpus is revoked, and a
                later version is without it. `refused`: neither. `nothing_found`: there is
                nothing to do.
            reason: The requester reads it.
        """
        answer: documents.StaffCase = self.ask(
            "POST",
            f"/v1/cases/{segment(case)}:decide",
            documents.StaffCase,
            body={"decision": decision, "reason": reason},
        )
        return answer

    def link_case_version(self, case: str, *, model: str, version: str) -> documents.StaffCase:
        """Link a version whose attestation shows what was decided. For admins and data stewards.

        Refused, unless it does: the corpora are not in its manifest and are revoked, or their
        adapters are stated as removed. The last one that is missing closes the case.

        Args:
            case: The case's number.
        """
        answer: documents.StaffCase = self.ask(
            "POST",
            f"/v1/cases/{segment(case)}:link",
            documents.StaffCase,
            body={"model": model, "version": version},
        )
        return answer

    def list_workspaces(self) -> Iterator[documents.Workspace]:
        """The workspaces that you see, by name."""
        return self.pages("/v1/workspaces", documents.Workspace)

    def make_workspace(self, *, name: str, description: str | None = None) -> documents.Workspace:
        """Make a workspace. For admins of the organisation."""
        answer: documents.Workspace = self.ask(
            "POST",
            "/v1/workspaces",
            documents.Workspace,
            body={"name": name, "description": description},
        )
        return answer

    def get_workspace(self, workspace: str) -> documents.Workspace:
        """One workspace.

        Args:
            workspace: Its name.
        """
        answer: documents.Workspace = self.ask(
            "GET", f"/v1/workspaces/{segment(workspace)}", documents.Workspace
        )
        return answer

    def change_workspace(
        self, workspace: str, *, description: str | None = None, archived: bool | None = None
    ) -> documents.Workspace:
        """Describe, archive or bring back a workspace. For its admins.

        Args:
            workspace: Its name.
        """
        answer: documents.Workspace = self.ask(
            "PATCH",
            f"/v1/workspaces/{segment(workspace)}",
            documents.Workspace,
            body={"description": description, "archived": archived},
        )
        return answer

    def list_projects(self, *, workspace: str | None = None) -> Iterator[documents.Project]:
        """The projects that you see, by name.

        Args:
            workspace: Of this workspace only.
        """
        return self.pages("/v1/projects", documents.Project, query={"workspace": workspace})

    def make_project(
        self, *, name: str, workspace: str, description: str | None = None
    ) -> documents.Project:
        """Make a project in a workspace. For admins of that.

        Experiments of this name that nobody's project had become its own. So only an admin of
        the organisation makes a project whose name experiments have.
        """
        answer: documents.Project = self.ask(
            "POST",
            "/v1/projects",
            documents.Project,
            body={"name": name, "workspace": workspace, "description": description},
        )
        return answer

    def get_project(self, project: str) -> documents.Project:
        """One project.

        Args:
            project: Its name.
        """
        answer: documents.Project = self.ask(
            "GET", f"/v1/projects/{segment(project)}", documents.Project
        )
        return answer

    def change_project(
        self, project: str, *, description: str | None = None, archived: bool | None = None
    ) -> documents.Project:
        """Describe, archive or bring back a project. For its admins.

        Args:
            project: Its name.
        """
        answer: documents.Project = self.ask(
            "PATCH",
            f"/v1/projects/{segment(project)}",
            documents.Project,
            body={"description": description, "archived": archived},
        )
        return answer

    def get_project_settings(self, project: str) -> documents.Settings:
        """What may be submitted to a project, and what is the default there.

        Args:
            project: Its name.
        """
        answer: documents.Settings = self.ask(
            "GET", f"/v1/projects/{segment(project)}/settings", documents.Settings
        )
        return answer

    def set_project_settings(self, project: str, body: dict[str, Any]) -> documents.Settings:
        """Replace a project's config policy. For its admins.

        The body is the policy itself, as `settings` of the answer has it. Submissions that wait
        already keep what they were accepted with.

        Args:
            project: Its name.
        """
        answer: documents.Settings = self.ask(
            "PUT", f"/v1/projects/{segment(project)}/settings", documents.Settings, body=body
        )
        return answer

    def list_templates(self, project: str) -> Iterator[documents.Template]:
        """The templates of a project, by name.

        Args:
            project: Its name.
        """
        return self.pages(f"/v1/projects/{segment(project)}/templates", documents.Template)

    def get_template(self, project: str, name: str) -> documents.TemplateText:
        """One template, with its text.

        Args:
            project: Its name.
            name: The template's name.
        """
        answer: documents.TemplateText = self.ask(
            "GET",
            f"/v1/projects/{segment(project)}/templates/{segment(name)}",
            documents.TemplateText,
        )
        return answer

    def put_template(self, project: str, name: str, *, text: str) -> documents.TemplateText:
        """Make a template, or replace it. For data stewards and admins of the project.

        Args:
            project: Its name.
            name: The template's name.
        """
        answer: documents.TemplateText = self.ask(
            "PUT",
            f"/v1/projects/{segment(project)}/templates/{segment(name)}",
            documents.TemplateText,
            body={"text": text},
        )
        return answer

    def delete_template(self, project: str, name: str) -> None:
        """Delete a template. For data stewards and admins of the project.

        Args:
            project: Its name.
            name: The template's name.
        """
        self.ask("DELETE", f"/v1/projects/{segment(project)}/templates/{segment(name)}", None)

    def fill_template(
        self, project: str, name: str, *, set: list[str] | None = None
    ) -> documents.Filled:
        """The experiment file that a template makes with overrides. Nothing is submitted.

        Args:
            project: Its name.
            name: The template's name.
            set: `path=value`, each applied after the one before; `+path=value` adds.
        """
        answer: documents.Filled = self.ask(
            "POST",
            f"/v1/projects/{segment(project)}/templates/{segment(name)}:fill",
            documents.Filled,
            body={"set": set},
        )
        return answer

    def list_role_bindings(
        self,
        *,
        scope: Literal["organisation", "workspace", "project", "model", "case"] | None = None,
        place: str | None = None,
        user: str | None = None,
        group: str | None = None,
    ) -> Iterator[documents.Binding]:
        """The roles of the places that you see, and your own. Ended ones too.

        Args:
            scope: Of such places only.
            place: Of this place only.
            user: Of this user only.
            group: Of this group only.
        """
        return self.pages(
            "/v1/role-bindings",
            documents.Binding,
            query={"scope": scope, "place": place, "user": user, "group": group},
        )

    def bind_role(
        self,
        *,
        role: Literal["admin", "engineer", "steward", "auditor", "viewer", "supplier"],
        scope: Literal["organisation", "workspace", "project", "model", "case"],
        user: str | None = None,
        group: str | None = None,
        place: str | None = None,
        supplier: str | None = None,
        until: str | None = None,
    ) -> documents.Binding:
        """Give a role in a place. For admins of it.

        The same role of the same subject again gets another end.

        Args:
            user: The user; `oidc:SUBJECT` of an identity provider.
            group: The group, in place of a user.
        """
        answer: documents.Binding = self.ask(
            "POST",
            "/v1/role-bindings",
            documents.Binding,
            body={
                "role": role,
                "scope": scope,
                "user": user,
                "group": group,
                "place": place,
                "supplier": supplier,
                "until": until,
            },
        )
        return answer

    def unbind_role(self, binding: str) -> None:
        """Take a role away. For admins of its place. The last admin of all stays.

        Args:
            binding: The binding's id.
        """
        self.ask("DELETE", f"/v1/role-bindings/{segment(binding)}", None)

    def list_groups(self) -> Iterator[documents.Group]:
        """The groups of this store, by name. An identity provider's are not listed."""
        return self.pages("/v1/groups", documents.Group)

    def list_group_members(self, group: str) -> Iterator[documents.Member]:
        """Who is in a group, by name. A group without members is no group.

        Args:
            group: Its name.
        """
        return self.pages(f"/v1/groups/{segment(group)}/members", documents.Member)

    def add_group_member(self, group: str, user: str) -> documents.Member:
        """Put a user into a group, which its first member makes. For admins of the organisation.

        Args:
            group: Its name.
            user: The user's name.
        """
        answer: documents.Member = self.ask(
            "PUT", f"/v1/groups/{segment(group)}/members/{segment(user)}", documents.Member
        )
        return answer

    def remove_group_member(self, group: str, user: str) -> None:
        """Take a user out of a group. For admins of the organisation.

        Args:
            group: Its name.
            user: The user's name.
        """
        self.ask("DELETE", f"/v1/groups/{segment(group)}/members/{segment(user)}", None)

    def list_users(self) -> Iterator[documents.User]:
        """The users, by name. For admins and auditors of the organisation."""
        return self.pages("/v1/users", documents.User)

    def change_user(self, user: str, *, disabled: bool) -> documents.User:
        """Disable or enable a user. For admins of the organisation. The last of them stays.

        Args:
            user: The user's name.
            disabled: No token of a disabled user is accepted.
        """
        answer: documents.User = self.ask(
            "PATCH", f"/v1/users/{segment(user)}", documents.User, body={"disabled": disabled}
        )
        return answer

    def list_tokens(self) -> Iterator[documents.TokenItem]:
        """Your tokens; for admins of the organisation all of them. By user."""
        return self.pages("/v1/tokens", documents.TokenItem)

    def make_token(
        self,
        *,
        user: str | None = None,
        role: Literal["admin", "engineer", "auditor", "supplier", "member"] | None = None,
        supplier: str | None = None,
        scopes: list[Literal["read", "write", "admin"]] | None = None,
        name: str | None = None,
        days: int | None = None,
    ) -> documents.MadeToken:
        """Make a token of your own; for admins anyone's, and its user if that is new.

        Args:
            user: Another user's, for admins.
            role: Of a user who is new, for admins.
            supplier: The authority that a new supplier is.
        """
        answer: documents.MadeToken = self.ask(
            "POST",
            "/v1/tokens",
            documents.MadeToken,
            body={
                "user": user,
                "role": role,
                "supplier": supplier,
                "scopes": scopes,
                "name": name,
                "days": days,
            },
        )
        return answer

    def revoke_token(self, token: str) -> documents.TokenItem:
        """Revoke a token of your own, for ever; for admins anyone's. It ends within two seconds.

        Args:
            token: The token's id.
        """
        answer: documents.TokenItem = self.ask(
            "POST", f"/v1/tokens/{segment(token)}:revoke", documents.TokenItem
        )
        return answer

    def list_alerts(
        self,
        *,
        kind: Literal[
            "run.completed",
            "run.error",
            "run.flag",
            "run.gate",
            "run.rollback",
            "run.log",
            "search.completed",
            "submission.error",
            "credential.expiring",
            "model.unverified",
            "model.verified",
        ]
        | None = None,
        project: str | None = None,
    ) -> Iterator[documents.Happened]:
        """What happened and was noticed, the latest first. For staff.

        Args:
            kind: Only events of this kind.
            project: Only events of this project.
        """
        return self.pages(
            "/v1/alerts", documents.Happened, query={"kind": kind, "project": project}
        )

    def list_webhooks(self) -> Iterator[documents.Webhook]:
        """The webhooks, without their secrets. For admins."""
        return self.pages("/v1/webhooks", documents.Webhook)

    def add_webhook(
        self,
        *,
        url: str,
        events: list[
            Literal[
                "run.completed",
                "run.error",
                "run.flag",
                "run.gate",
                "run.rollback",
                "run.log",
                "search.completed",
                "submission.error",
                "credential.expiring",
                "model.unverified",
                "model.verified",
            ]
        ]
        | None = None,
        project: str | None = None,
    ) -> documents.MadeWebhook:
        """Make a webhook, and show its secret, once. For admins.

        Args:
            url: https. No user name, no fragment.
            events: None: all of them.
            project: Only what belongs to this project.
        """
        answer: documents.MadeWebhook = self.ask(
            "POST",
            "/v1/webhooks",
            documents.MadeWebhook,
            body={"url": url, "events": events, "project": project},
        )
        return answer

    def remove_webhook(self, webhook: str) -> documents.Removed:
        """Remove a webhook, with what was still to be sent to it. For admins.

        Args:
            webhook: Of the webhook.
        """
        answer: documents.Removed = self.ask(
            "DELETE", f"/v1/webhooks/{segment(webhook)}", documents.Removed
        )
        return answer

    def test_webhook(self, webhook: str) -> documents.SentEvent:
        """Put a test event into line for a webhook. For admins.

        Args:
            webhook: Of the webhook.
        """
        answer: documents.SentEvent = self.ask(
            "POST", f"/v1/webhooks/{segment(webhook)}:test", documents.SentEvent
        )
        return answer

    def list_deliveries(
        self, webhook: str, *, state: documents.DeliveryState | None = None
    ) -> Iterator[documents.SentEvent]:
        """What was or is to be sent to a webhook, by event. For admins.

        Args:
            webhook: Of the webhook.
            state: `DEAD`: those that were given up.
        """
        return self.pages(
            f"/v1/webhooks/{segment(webhook)}/deliveries",
            documents.SentEvent,
            query={"state": state},
        )

    def resend_delivery(self, webhook: str, event: str) -> documents.SentEvent:
        """Let an event be sent again, such as one that was given up. For admins.

        Args:
            webhook: Of the webhook.
            event: Of the event.
        """
        answer: documents.SentEvent = self.ask(
            "POST",
            f"/v1/webhooks/{segment(webhook)}/deliveries/{segment(event)}:resend",
            documents.SentEvent,
        )
        return answer

    def list_tasks(self, *, user: str | None = None) -> Iterator[documents.Task]:
        """The tasks that you may see, the newest first.

        Args:
            user: Whose they are.
        """
        return self.pages("/v1/tasks", documents.Task, query={"user": user})

    def submit_task(
        self,
        *,
        name: str,
        config: str,
        project: str | None = None,
        pool: str | None = None,
        priority: int | None = None,
        idempotency_key: str | None = None,
    ) -> documents.Task:
        """Put a task in the queue, with the project's defaults and within its limits.

        Args:
            config: The task file, as docs/interactive.md has it.
            project: The project that it counts for.
            pool: The pool of nodes to run in; the project's own if left out.
            priority: Of a pool's queue the highest goes first; the project's if left out.
            idempotency_key: Of your choice, new for each submission. The same request with the
                same key answers the same submission, and makes no second one.
        """
        answer: documents.Task = self.ask(
            "POST",
            "/v1/tasks",
            documents.Task,
            header={"Idempotency-Key": idempotency_key},
            body={
                "name": name,
                "config": config,
                "project": project,
                "pool": pool,
                "priority": priority,
            },
        )
        return answer

    def get_task(self, task: str) -> documents.Task:
        """One task.

        Args:
            task: The task's id in the queue.
        """
        answer: documents.Task = self.ask("GET", f"/v1/tasks/{segment(task)}", documents.Task)
        return answer

    def open_task(self, task: str) -> documents.OpenedTask:
        """An address that shows the task, good once and for a minute.

        It sets a cookie of the task's own host, and nothing of it is good for this service.

        Args:
            task: The task's id in the queue.
        """
        answer: documents.OpenedTask = self.ask(
            "POST", f"/v1/tasks/{segment(task)}:open", documents.OpenedTask
        )
        return answer

    def get_prometheus_metrics(self) -> str:
        """Requests and latencies by route and status, in Prometheus' text format. For staff.

        404 on Ray Serve, where Ray's metrics agent has them for all replicas.
        """
        answer: str = self.ask("GET", "/metrics", str)
        return answer
