"""The names of operations in the OpenAPI description, and what its parameters are called there.

A client's functions have these names, so a change of one breaks who calls it. A route that is not
in `NAMES` has its function's name. `tests/platform/service/test_openapi.py` finds two of one name.
"""

from __future__ import annotations

from typing import Any

from fastapi.routing import APIRoute

NAMES = {
    "attestations.by_subject": "find_attestation_by_subject",
    "attestations.envelope": "get_attestation",
    "attestations.listing": "list_attestations",
    "attestations.verify": "verify_attestation",
    "audit_log.audit": "list_audit_entries",
    "audit_log.usage": "get_usage",
    "cases.answer": "get_case_answer",
    "cases.case": "get_case",
    "cases.decide": "decide_case",
    "cases.give_answer": "answer_case",
    "cases.link": "link_case_version",
    "cases.listing": "list_cases",
    "cases.receive": "open_case",
    "cases.search": "search_case",
    "cases.standing": "get_case_standing",
    "corpora.corpus": "get_corpus",
    "corpora.listing": "list_corpora",
    "downloads.config_yaml": "download_config",
    "downloads.decisions_json": "download_decisions",
    "downloads.metrics_csv": "download_metrics",
    "experiments.checkpoints": "list_checkpoints",
    "experiments.decisions": "list_decisions",
    "experiments.experiment": "get_experiment",
    "experiments.experiments": "list_experiments",
    "experiments.metrics": "list_metrics",
    "experiments.trial": "get_trial",
    "experiments.trials": "list_trials",
    "health.health": "get_health",
    "health.live": "check_live",
    "health.numbers": "get_prometheus_metrics",
    "health.ready": "check_ready",
    "ledgers.checkpoint": "get_ledger_checkpoint",
    "ledgers.consistency": "get_consistency_proof",
    "ledgers.entry": "get_ledger_entry",
    "ledgers.head": "get_ledger",
    "ledgers.inclusion": "get_inclusion_proof",
    "ledgers.tile": "get_ledger_tile",
    "lineage.layer_of_attestation": "get_attestation_layer",
    "lineage.layer_of_version": "get_version_layer",
    "lineage.of_attestation": "get_attestation_lineage",
    "lineage.of_version": "get_version_lineage",
    "live_metrics.stream": "stream_metrics",
    "logs.listing": "list_logs",
    "logs.read": "get_log",
    "logs.stream": "stream_log",
    "memorization.of_attestation": "get_attestation_memorization",
    "memorization.of_version": "get_version_memorization",
    "models.annotate": "annotate_version",
    "models.model": "get_model",
    "models.models": "list_models",
    "models.promote": "promote_version",
    "models.register": "register_version",
    "models.version": "get_version",
    "models.versions": "list_versions",
    "pins.listing": "list_pins",
    "pins.pin": "pin_checkpoint",
    "pins.unpin": "unpin_checkpoint",
    "policies.diff": "compare_policies",
    "policies.envelope": "get_policy",
    "policies.explain": "explain_policy",
    "policies.listing": "list_policies",
    "policies.trust_root": "get_trust_root",
    "policies.trust_roots": "list_trust_roots",
    "projects.project": "get_project",
    "projects.projects": "list_projects",
    "projects.set_settings": "set_project_settings",
    "projects.settings": "get_project_settings",
    "projects.workspace": "get_workspace",
    "projects.workspaces": "list_workspaces",
    "records.by_hash": "get_record",
    "records.search": "search_records",
    "role_bindings.add_member": "add_group_member",
    "role_bindings.bind": "bind_role",
    "role_bindings.bindings": "list_role_bindings",
    "role_bindings.groups": "list_groups",
    "role_bindings.members": "list_group_members",
    "role_bindings.remove_member": "remove_group_member",
    "role_bindings.unbind": "unbind_role",
    "tags.tags": "get_tags",
    "templates.drop": "delete_template",
    "templates.fill": "fill_template",
    "templates.put": "put_template",
    "templates.template": "get_template",
    "templates.templates": "list_templates",
    "tokens.listing": "list_tokens",
    "tokens.make": "make_token",
    "tokens.revoke": "revoke_token",
    "users.users": "list_users",
    "webhooks.add": "add_webhook",
    "webhooks.deliveries": "list_deliveries",
    "webhooks.happened": "list_alerts",
    "webhooks.listing": "list_webhooks",
    "webhooks.remove": "remove_webhook",
    "webhooks.resend": "resend_delivery",
    "webhooks.try_it": "test_webhook",
}
"""A route's module and function → its operation's name: a verb and what it is of."""

PARAMETERS = {
    "action": "Entries of this action.",
    "by": "What usage is counted by.",
    "corpus": "A corpus's name.",
    "experiment": "An experiment's id.",
    "first": "The smaller size of the ledger, in leaves.",
    "from": "Digest of the policy that is replaced.",
    "group": "A layer group, such as `block.3`; of metrics, the group that they are in.",
    "if-none-match": "ETags of what you have.",
    "index": "A leaf's index, from 0.",
    "kind": "Decisions of this kind.",
    "model": "A model's name.",
    "name": "Of this name.",
    "outcome": "Entries of this outcome.",
    "path": "A tile's path, as C2SP tlog-tiles has it.",
    "policy": "Digest of a signed depth policy.",
    "pool": "In this pool.",
    "project": "Of this project.",
    "run": "A run's name.",
    "second": "The larger size; by default the ledger's.",
    "sha256": "A SHA-256 in hex.",
    "size": "The size that the proof is for; by default the ledger's.",
    "state": "In this state.",
    "subject": "Entries about this.",
    "to": "Digest of the policy that takes its place.",
    "trial": "A trial's id.",
    "user": "Of this user.",
    "version": "A semantic version: `1.4.0`.",
}
"""What a parameter is, where its route does not say it better."""


def operation_id(route: APIRoute) -> str:
    function = route.endpoint
    place = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
    return NAMES.get(place, function.__name__)


def describe_parameters(description: dict[str, Any]) -> None:
    for methods in description["paths"].values():
        for operation in methods.values():
            for each in operation.get("parameters", ()):
                if not each.get("description") and each["name"].lower() in PARAMETERS:
                    each["description"] = PARAMETERS[each["name"].lower()]
