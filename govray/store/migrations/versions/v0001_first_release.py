"""The tables of the first release.

Writes what `govray.store.tables` said then; it does not import them, for they go on.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
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
        sa.Column("confidential", sa.Boolean(), nullable=False),
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
        sa.Column("state", sa.String(32), nullable=False),
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
        "trustroot",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
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
        sa.ForeignKeyConstraint(
            ["policy"],
            ["policy.digest"],
        ),
        sa.ForeignKeyConstraint(
            ["trust_root"],
            ["trustroot.digest"],
        ),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_index(op.f("ix_attestation_run"), "attestation", ["run"], unique=False)
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
        sa.ForeignKeyConstraint(
            ["user"],
            ["account.name"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_token_user"), "token", ["user"], unique=False)
    op.create_table(
        "trial",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("experiment", sa.String(), nullable=False),
        sa.Column("folder", sa.String(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
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
        sa.Column("read_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment"],
            ["experiment.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_trial_experiment"), "trial", ["experiment"], unique=False)
    op.create_index(op.f("ix_trial_policy"), "trial", ["policy"], unique=False)
    op.create_index(op.f("ix_trial_replay_of"), "trial", ["replay_of"], unique=False)
    op.create_index(op.f("ix_trial_started"), "trial", ["started"], unique=False)
    op.create_table(
        "checkpoint",
        sa.Column("trial", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("digest", sa.String(), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(
            ["trial"],
            ["trial.id"],
        ),
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
        sa.ForeignKeyConstraint(
            ["attestation"],
            ["attestation.digest"],
        ),
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
        sa.ForeignKeyConstraint(
            ["attestation"],
            ["attestation.digest"],
        ),
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
        sa.ForeignKeyConstraint(
            ["trial"],
            ["trial.id"],
        ),
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
        sa.Column("at", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(
            ["trial"],
            ["trial.id"],
        ),
        sa.PrimaryKeyConstraint("trial", "group", "name", "step", "attempt"),
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
        sa.ForeignKeyConstraint(
            ["attestation"],
            ["attestation.digest"],
        ),
        sa.ForeignKeyConstraint(
            ["model"],
            ["model.name"],
        ),
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
        sa.ForeignKeyConstraint(
            ["attestation"],
            ["attestation.digest"],
        ),
        sa.PrimaryKeyConstraint("record_key", "attestation", "corpus", "record"),
    )
    op.create_table(
        "subject",
        sa.Column("attestation", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attestation"],
            ["attestation.digest"],
        ),
        sa.PrimaryKeyConstraint("attestation", "name"),
    )
    op.create_index(op.f("ix_subject_sha256"), "subject", ["sha256"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_subject_sha256"), table_name="subject")
    op.drop_table("subject")
    op.drop_table("record")
    op.drop_index(op.f("ix_modelversion_attestation"), table_name="modelversion")
    op.drop_table("modelversion")
    op.drop_table("metric")
    op.drop_index(op.f("ix_decision_kind"), table_name="decision")
    op.drop_index(op.f("ix_decision_corpus"), table_name="decision")
    op.drop_table("decision")
    op.drop_index("coverage_by_group", table_name="coverage")
    op.drop_table("coverage")
    op.drop_table("corpususe")
    op.drop_table("checkpoint")
    op.drop_index(op.f("ix_trial_started"), table_name="trial")
    op.drop_index(op.f("ix_trial_replay_of"), table_name="trial")
    op.drop_index(op.f("ix_trial_policy"), table_name="trial")
    op.drop_index(op.f("ix_trial_experiment"), table_name="trial")
    op.drop_table("trial")
    op.drop_index(op.f("ix_token_user"), table_name="token")
    op.drop_table("token")
    op.drop_index(op.f("ix_attestation_run"), table_name="attestation")
    op.drop_table("attestation")
    op.drop_table("trustroot")
    op.drop_index(op.f("ix_policy_name"), table_name="policy")
    op.drop_table("policy")
    op.drop_table("model")
    op.drop_index(op.f("ix_memorizationmanifest_weights"), table_name="memorizationmanifest")
    op.drop_index(op.f("ix_memorizationmanifest_run"), table_name="memorizationmanifest")
    op.drop_table("memorizationmanifest")
    op.drop_table("ledger")
    op.drop_index(op.f("ix_experiment_user"), table_name="experiment")
    op.drop_index(op.f("ix_experiment_started"), table_name="experiment")
    op.drop_index(op.f("ix_experiment_project"), table_name="experiment")
    op.drop_index(op.f("ix_experiment_name"), table_name="experiment")
    op.drop_table("experiment")
    op.drop_index(op.f("ix_credential_supplier"), table_name="credential")
    op.drop_index(op.f("ix_credential_corpus"), table_name="credential")
    op.drop_table("credential")
    op.drop_index(op.f("ix_corpus_supplier"), table_name="corpus")
    op.drop_table("corpus")
    op.drop_index(op.f("ix_audit_user"), table_name="audit")
    op.drop_index(op.f("ix_audit_subject"), table_name="audit")
    op.drop_index(op.f("ix_audit_at"), table_name="audit")
    op.drop_table("audit")
    op.drop_index(op.f("ix_account_supplier"), table_name="account")
    op.drop_table("account")
