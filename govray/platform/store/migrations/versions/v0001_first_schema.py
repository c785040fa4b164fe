"""The first schema: the tables that ``govray.platform.store.tables`` says.

It is edited until 0.1.0. From then on each change of the tables is a migration of its own. None
imports the tables, for they go on.
"""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_TABLES = (
    "template",
    "subject",
    "record",
    "modelversion",
    "metric",
    "decision",
    "coverage",
    "corpususe",
    "checkpoint",
    "browsersession",
    "absentrecords",
    "trial",
    "token",
    "recordcommitment",
    "project",
    "delivery",
    "delegations",
    "attestation",
    "workspace",
    "webhook",
    "trustroot",
    "task_ticket",
    "submission",
    "storesecret",
    "signinattempt",
    "rolebinding",
    "rightscase",
    "reverification",
    "pool",
    "policy",
    "model",
    "memorizationmanifest",
    "ledger",
    "lease",
    "head",
    "groupmember",
    "experimenttag",
    "experiment",
    "credential",
    "corpus",
    "audit",
    "alert",
    "account",
)
"""All of them, those that refer to others first."""


def upgrade() -> None:
    """Make the tables, empty but for a workspace and a project ``default``."""
    op.create_table(
        "account",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("supplier", sa.String(), nullable=True),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("created", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_index(op.f("ix_account_supplier"), "account", ["supplier"], unique=False)
    op.create_table(
        "alert",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("mark", sa.String(), nullable=False),
        sa.Column("at", sa.String(), nullable=False),
        sa.Column("noticed", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=True),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("alert_by_cause", "alert", ["kind", "subject", "mark"], unique=True)
    op.create_index(op.f("ix_alert_at"), "alert", ["at"], unique=False)
    op.create_table(
        "audit",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("at", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=True),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_index(op.f("ix_audit_at"), "audit", ["at"], unique=False)
    op.create_index(op.f("ix_audit_subject"), "audit", ["subject"], unique=False)
    op.create_index(op.f("ix_audit_user"), "audit", ["user"], unique=False)
    op.create_table(
        "corpus",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("supplier", sa.String(), nullable=False),
        sa.Column("sensitivity", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_index(op.f("ix_corpus_supplier"), "corpus", ["supplier"], unique=False)
    op.create_table(
        "credential",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("corpus", sa.String(), nullable=False),
        sa.Column("supplier", sa.String(), nullable=False),
        sa.Column("license", sa.String(), nullable=False),
        sa.Column("category", sa.String(), nullable=False),
        sa.Column("jurisdiction", sa.String(), nullable=False),
        sa.Column("sensitivity", sa.String(), nullable=False),
        sa.Column("valid_from", sa.String(), nullable=False),
        sa.Column("valid_until", sa.String(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_index(op.f("ix_credential_corpus"), "credential", ["corpus"], unique=False)
    op.create_index(op.f("ix_credential_supplier"), "credential", ["supplier"], unique=False)
    op.create_table(
        "experiment",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("storage", sa.String(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("started", sa.String(), nullable=False),
        sa.Column("finished", sa.String(), nullable=True),
        sa.Column("why", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_experiment_name"), "experiment", ["name"], unique=False)
    op.create_index(op.f("ix_experiment_project"), "experiment", ["project"], unique=False)
    op.create_index(op.f("ix_experiment_started"), "experiment", ["started"], unique=False)
    op.create_index(op.f("ix_experiment_user"), "experiment", ["user"], unique=False)
    op.create_table(
        "experimenttag",
        sa.Column("experiment", sa.String(), nullable=False),
        sa.Column("tag", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("experiment", "tag"),
    )
    op.create_index(op.f("ix_experimenttag_tag"), "experimenttag", ["tag"], unique=False)
    op.create_table(
        "groupmember",
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("group", "user"),
    )
    op.create_index(op.f("ix_groupmember_user"), "groupmember", ["user"], unique=False)
    op.create_table(
        "head",
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("root", sa.String(), nullable=False),
        sa.Column("checkpoint", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run", "size", "root"),
    )
    op.create_table(
        "lease",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("until", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "ledger",
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("root", sa.String(), nullable=False),
        sa.Column("checkpoint", sa.LargeBinary(), nullable=False),
        sa.Column("tiles", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("run"),
    )
    op.create_table(
        "memorizationmanifest",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("weights", sa.String(), nullable=False),
        sa.Column("signer", sa.String(), nullable=False),
        sa.Column("made", sa.String(), nullable=False),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_index(
        op.f("ix_memorizationmanifest_run"), "memorizationmanifest", ["run"], unique=False
    )
    op.create_index(
        op.f("ix_memorizationmanifest_weights"), "memorizationmanifest", ["weights"], unique=False
    )
    op.create_table(
        "model",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("description", sa.String(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("created", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "policy",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("signer", sa.String(), nullable=False),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_index(op.f("ix_policy_name"), "policy", ["name"], unique=False)
    op.create_table(
        "pool",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("most", sa.JSON(), nullable=False),
        sa.Column("most_others", sa.Integer(), nullable=True),
        sa.Column("folder", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "reverification",
        sa.Column("attestation", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("why", sa.String(), nullable=True),
        sa.Column("since", sa.String(), nullable=False),
        sa.Column("checked", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("attestation", "number"),
    )
    op.create_table(
        "rightscase",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("model", sa.String(), nullable=True),
        sa.Column("contact", sa.String(), nullable=False),
        sa.Column("requester", sa.String(), nullable=False),
        sa.Column("key_sha256", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=True),
        sa.Column("size", sa.BigInteger(), nullable=True),
        sa.Column("domains", sa.JSON(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=True),
        sa.Column("received", sa.String(), nullable=False),
        sa.Column("searched", sa.String(), nullable=True),
        sa.Column("found", sa.JSON(), nullable=False),
        sa.Column("answered", sa.String(), nullable=True),
        sa.Column("answer", sa.LargeBinary(), nullable=True),
        sa.Column("released", sa.JSON(), nullable=False),
        sa.Column("decision", sa.String(), nullable=True),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("decided", sa.String(), nullable=True),
        sa.Column("decided_by", sa.String(), nullable=True),
        sa.Column("links", sa.JSON(), nullable=False),
        sa.Column("closed", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_rightscase_model"), "rightscase", ["model"], unique=False)
    op.create_index(op.f("ix_rightscase_received"), "rightscase", ["received"], unique=False)
    op.create_index(op.f("ix_rightscase_state"), "rightscase", ["state"], unique=False)
    op.create_table(
        "rolebinding",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("subject_kind", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("place", sa.String(), nullable=False),
        sa.Column("supplier", sa.String(), nullable=True),
        sa.Column("until", sa.String(), nullable=True),
        sa.Column("made", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_rolebinding_place"), "rolebinding", ["place"], unique=False)
    op.create_index(op.f("ix_rolebinding_subject"), "rolebinding", ["subject"], unique=False)
    op.create_table(
        "signinattempt",
        sa.Column("secret_sha256", sa.String(), nullable=False),
        sa.Column("following", sa.String(), nullable=False),
        sa.Column("expires", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("secret_sha256"),
    )
    op.create_index(op.f("ix_signinattempt_expires"), "signinattempt", ["expires"], unique=False)
    op.create_table(
        "storesecret",
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("fingerprint"),
    )
    op.create_table(
        "submission",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("config", sa.String(), nullable=False),
        sa.Column("policy", sa.String(), nullable=True),
        sa.Column("archive", sa.String(), nullable=True),
        sa.Column("forked_from", sa.String(), nullable=True),
        sa.Column("run", sa.String(), nullable=True),
        sa.Column("job", sa.String(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("submitted", sa.String(), nullable=False),
        sa.Column("started", sa.String(), nullable=True),
        sa.Column("finished", sa.String(), nullable=True),
        sa.Column("why", sa.String(), nullable=True),
        sa.Column("position", sa.Integer(), nullable=True),
        sa.Column("archived", sa.Boolean(), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("token", sa.String(), nullable=True),
        sa.Column("request_key", sa.String(), nullable=True),
        sa.Column("request_body", sa.String(), nullable=True),
        sa.Column("least", sa.Integer(), nullable=True),
        sa.Column("cap", sa.Integer(), nullable=True),
        sa.Column("cap_number", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("capped", sa.String(), nullable=True),
        sa.Column("gives_to", sa.String(), nullable=True),
        sa.Column("held", sa.Integer(), nullable=True),
        sa.Column("node", sa.String(), nullable=True),
        sa.Column("trace", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("request_key", name="uq_submission_request_key"),
    )
    op.create_index(op.f("ix_submission_name"), "submission", ["name"], unique=False)
    op.create_index(op.f("ix_submission_project"), "submission", ["project"], unique=False)
    op.create_index(op.f("ix_submission_state"), "submission", ["state"], unique=False)
    op.create_index(op.f("ix_submission_submitted"), "submission", ["submitted"], unique=False)
    op.create_index(op.f("ix_submission_user"), "submission", ["user"], unique=False)
    op.create_table(
        "task_ticket",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("task", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=True),
        sa.Column("use", sa.String(), nullable=False),
        sa.Column("expires", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_index(op.f("ix_task_ticket_expires"), "task_ticket", ["expires"], unique=False)
    op.create_index(op.f("ix_task_ticket_task"), "task_ticket", ["task"], unique=False)
    op.create_table(
        "trustroot",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_table(
        "webhook",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("kinds", sa.JSON(), nullable=False),
        sa.Column("project", sa.String(), nullable=True),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("created", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    workspace = op.create_table(
        "workspace",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("description", sa.String(), nullable=False),
        sa.Column("archived", sa.Boolean(), nullable=False),
        sa.Column("created", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "attestation",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("signer", sa.String(), nullable=False),
        sa.Column("trust_root", sa.String(), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("assurance", sa.String(), nullable=False),
        sa.Column("started", sa.String(), nullable=False),
        sa.Column("finished", sa.String(), nullable=False),
        sa.Column("public", sa.Boolean(), nullable=False),
        sa.Column("folder", sa.String(), nullable=True),
        sa.Column("envelope_digest", sa.String(), nullable=False),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.Column("lineage", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["policy"], ["policy.digest"]),
        sa.ForeignKeyConstraint(["trust_root"], ["trustroot.digest"]),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_index(op.f("ix_attestation_run"), "attestation", ["run"], unique=False)
    op.create_table(
        "delegations",
        sa.Column("trust_root", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("lines", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["trust_root"], ["trustroot.digest"]),
        sa.PrimaryKeyConstraint("trust_root", "digest"),
    )
    op.create_table(
        "delivery",
        sa.Column("webhook", sa.String(), nullable=False),
        sa.Column("alert", sa.String(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("due", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=True),
        sa.Column("until", sa.String(), nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("why", sa.String(), nullable=True),
        sa.Column("delivered", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["alert"], ["alert.id"]),
        sa.ForeignKeyConstraint(["webhook"], ["webhook.id"]),
        sa.PrimaryKeyConstraint("webhook", "alert"),
    )
    op.create_index("delivery_by_turn", "delivery", ["state", "due"], unique=False)
    project = op.create_table(
        "project",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("workspace", sa.String(), nullable=False),
        sa.Column("description", sa.String(), nullable=False),
        sa.Column("archived", sa.Boolean(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("created", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["workspace"], ["workspace.name"]),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_index(op.f("ix_project_workspace"), "project", ["workspace"], unique=False)
    op.create_table(
        "recordcommitment",
        sa.Column("credential", sa.String(), nullable=False),
        sa.Column("commitment", sa.String(), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["credential"], ["credential.digest"]),
        sa.PrimaryKeyConstraint("credential"),
    )
    op.create_table(
        "token",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("secret_sha256", sa.String(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("created", sa.String(), nullable=False),
        sa.Column("expires", sa.String(), nullable=False),
        sa.Column("revoked", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["user"], ["account.name"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_token_user"), "token", ["user"], unique=False)
    op.create_table(
        "trial",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("experiment", sa.String(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("hyperparameters", sa.JSON(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("max_steps", sa.Integer(), nullable=False),
        sa.Column("loss", sa.Float(), nullable=True),
        sa.Column("objective", sa.Float(), nullable=True),
        sa.Column("world_size", sa.Integer(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("started", sa.String(), nullable=False),
        sa.Column("finished", sa.String(), nullable=True),
        sa.Column("why", sa.String(), nullable=True),
        sa.Column("replay_of", sa.String(), nullable=True),
        sa.Column("code", sa.String(), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("manifest", sa.String(), nullable=False),
        sa.Column("worker_seconds", sa.Float(), nullable=False),
        sa.Column("accelerator_seconds", sa.Float(), nullable=False),
        sa.Column("folder", sa.String(), nullable=False),
        sa.Column("read_bytes", sa.BigInteger(), nullable=False),
        sa.Column("reading", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["experiment"], ["experiment.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_trial_experiment"), "trial", ["experiment"], unique=False)
    op.create_index(op.f("ix_trial_policy"), "trial", ["policy"], unique=False)
    op.create_index(op.f("ix_trial_replay_of"), "trial", ["replay_of"], unique=False)
    op.create_index(op.f("ix_trial_started"), "trial", ["started"], unique=False)
    op.create_table(
        "absentrecords",
        sa.Column("attestation", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["attestation"], ["attestation.digest"]),
        sa.PrimaryKeyConstraint("attestation"),
    )
    op.create_table(
        "browsersession",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("secret_sha256", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("supplier", sa.String(), nullable=True),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("groups", sa.JSON(), nullable=False),
        sa.Column("token", sa.String(), nullable=True),
        sa.Column("created", sa.String(), nullable=False),
        sa.Column("used", sa.String(), nullable=False),
        sa.Column("expires", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["token"], ["token.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_browsersession_expires"), "browsersession", ["expires"], unique=False)
    op.create_index(op.f("ix_browsersession_user"), "browsersession", ["user"], unique=False)
    op.create_table(
        "checkpoint",
        sa.Column("trial", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("digest", sa.String(), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["trial"], ["trial.id"]),
        sa.PrimaryKeyConstraint("trial", "step"),
    )
    op.create_table(
        "corpususe",
        sa.Column("corpus", sa.String(), nullable=False),
        sa.Column("attestation", sa.String(), nullable=False),
        sa.Column("credential", sa.String(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("first_step", sa.Integer(), nullable=True),
        sa.Column("last_step", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["attestation"], ["attestation.digest"]),
        sa.PrimaryKeyConstraint("corpus", "attestation"),
    )
    op.create_table(
        "coverage",
        sa.Column("attestation", sa.String(), nullable=False),
        sa.Column("corpus", sa.String(), nullable=False),
        sa.Column("layer_group", sa.String(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("norm_share", sa.Float(), nullable=True),
        sa.Column("direct", sa.Boolean(), nullable=False),
        sa.Column("transitive", sa.Boolean(), nullable=False),
        sa.Column("level", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["attestation"], ["attestation.digest"]),
        sa.PrimaryKeyConstraint("attestation", "corpus", "layer_group"),
    )
    op.create_index("coverage_by_group", "coverage", ["attestation", "layer_group"], unique=False)
    op.create_table(
        "decision",
        sa.Column("trial", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("at", sa.String(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("corpus", sa.String(), nullable=True),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["trial"], ["trial.id"]),
        sa.PrimaryKeyConstraint("trial", "source", "number"),
    )
    op.create_index(op.f("ix_decision_corpus"), "decision", ["corpus"], unique=False)
    op.create_index(op.f("ix_decision_kind"), "decision", ["kind"], unique=False)
    op.create_table(
        "metric",
        sa.Column("trial", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("archived", sa.Boolean(), nullable=False),
        sa.Column("resolution", sa.Integer(), nullable=False),
        sa.Column("at", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["trial"], ["trial.id"]),
        sa.PrimaryKeyConstraint("trial", "group", "name", "step", "attempt"),
    )
    op.create_index(
        "ix_metric_drawn",
        "metric",
        ["trial", "archived", "resolution", "group", "name", "step"],
        unique=False,
    )
    op.create_table(
        "modelversion",
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("major", sa.Integer(), nullable=False),
        sa.Column("minor", sa.Integer(), nullable=False),
        sa.Column("patch", sa.Integer(), nullable=False),
        sa.Column("attestation", sa.String(), nullable=False),
        sa.Column("stage", sa.String(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("notes", sa.String(), nullable=False),
        sa.Column("created", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["attestation"], ["attestation.digest"]),
        sa.ForeignKeyConstraint(["model"], ["model.name"]),
        sa.PrimaryKeyConstraint("model", "version"),
    )
    op.create_index(
        op.f("ix_modelversion_attestation"), "modelversion", ["attestation"], unique=False
    )
    op.create_table(
        "record",
        sa.Column("record_key", sa.String(), nullable=False),
        sa.Column("attestation", sa.String(), nullable=False),
        sa.Column("corpus", sa.String(), nullable=False),
        sa.Column("record", sa.BigInteger(), nullable=False),
        sa.Column("split", sa.String(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("step_count", sa.Integer(), nullable=False),
        sa.Column("steps", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["attestation"], ["attestation.digest"]),
        sa.PrimaryKeyConstraint("record_key", "attestation", "corpus", "record"),
    )
    op.create_table(
        "subject",
        sa.Column("attestation", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["attestation"], ["attestation.digest"]),
        sa.PrimaryKeyConstraint("attestation", "name"),
    )
    op.create_index(op.f("ix_subject_sha256"), "subject", ["sha256"], unique=False)
    op.create_table(
        "template",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("changed", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["project"], ["project.name"]),
        sa.PrimaryKeyConstraint("project", "name"),
    )
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    made = {"name": "default", "description": "", "archived": False, "created": now, "user": ""}
    op.bulk_insert(workspace, [made])
    op.bulk_insert(project, [{**made, "workspace": "default", "settings": {}}])


def downgrade() -> None:
    for name in _TABLES:
        op.drop_table(name)
