"""``govray policy``: advice about a depth policy, before and after it is signed.

Policies are read from their YAML source or from their envelope. Nothing is
verified here: these verbs are for the policy's author.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from govray.cli import observed_run, user_files
from govray.cli.corpus_source import OptOutAgentOption, OptOutsOption
from govray.cli.option_group import LicenseCategory, Sensitivity, Use
from govray.cli.output import field, line, print_table, report, table
from govray.errors import Malformed, Refused, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from govray.governance.policy.corpus_routes import Fallback
    from govray.governance.policy.credential import CredentialClass
    from govray.governance.policy.depth_policy import Policy
    from govray.governance.policy.lint import ClassOutcome, GroupReason
    from govray.governance.trust.authority import TrustRoot

app = typer.Typer(help="Lint, explain, compare and calibrate depth policies.")

PolicyFile = Annotated[Path, typer.Argument(metavar="FILE", help="A policy: YAML, or signed.")]
Blocks = Annotated[
    int | None,
    typer.Option("--blocks", min=1, max=10_000, help="For a model of this many blocks."),
]
ModelFolder = Annotated[
    Path | None, typer.Option("--model", metavar="MODEL", help="For the layer groups of a model.")
]
DEFAULT_BLOCKS = 4

_CALIBRATED = re.compile(r"^([ ]+odds:[ ]+)calibrated(?=[ ]*(?:#.*)?$)", re.M)


@app.command()
def lint(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="A policy or a trust root: YAML, or signed.")
    ],
    previous: Annotated[
        Path | None,
        typer.Option(
            "--previous",
            metavar="FILE",
            help="The version in force; report what the new one widens.",
        ),
    ] = None,
    blocks: Blocks = None,
    model: ModelFolder = None,
) -> None:
    """Look for mistakes that the author may have made. Exit code 1 if there are any.

    --blocks and --model also find selectors that match no layer group. In a trust root, look for a
    key in several roles.
    """
    from govray.governance.policy.lint import lint as find
    from govray.governance.policy.lint import lint_root

    root = _root(path)
    if root is not None:
        if previous is not None or blocks is not None or model is not None:
            raise UsageError(
                "this is a trust root, not a policy",
                where=str(path),
                do="Leave --previous, --blocks and --model out.",
            )
        kind, subject = "trustRoot", f"{root.name} v{root.version}"
        findings = lint_root(root)
    else:
        policy = _read(path)
        kind, subject = "policy", str(policy)
        findings = find(
            policy,
            previous=_read(previous) if previous is not None else None,
            groups=_groups(policy, blocks, model) if blocks or model else None,
        )
    report({kind: subject, "findings": [vars(each) for each in findings]})
    if not findings:
        line(f"{subject}: nothing found")
        return
    for each in findings:
        line(f"{each.code}  {each.subject}: {each.message}")
    raise typer.Exit(1)


@app.command()
def explain(
    path: PolicyFile,
    credential: Annotated[
        Path | None,
        typer.Option(
            "--credential", metavar="FILE", help="Explain the policy for this credential."
        ),
    ] = None,
    license: Annotated[
        str | None,
        typer.Option("--license", metavar="SPDX", help="Explain the policy for this licence."),
    ] = None,
    corpus: Annotated[
        str, typer.Option("--corpus", help="The name, with --license.")
    ] = "any-corpus",
    license_category: Annotated[
        LicenseCategory | None,
        typer.Option("--license-category", help="The category of a LicenseRef-*."),
    ] = None,
    jurisdiction: Annotated[
        str, typer.Option("--jurisdiction", help="The code, with --license.")
    ] = "ZZ",
    sensitivity: Annotated[
        Sensitivity, typer.Option("--sensitivity", help="Its own, with --license.")
    ] = "restricted",
    use: Annotated[Use | None, typer.Option("--use", help="The terms, with --license.")] = None,
    stated: Annotated[
        list[str] | None,
        typer.Option(
            "--stated",
            metavar="ATTRIBUTE=VALUE",
            help="Of the corpus's description, as source=crawled. With --license. Repeatable.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="A record's URL, which --opt-outs may reserve."),
    ] = None,
    opt_outs: OptOutsOption = None,
    opt_out_agent: OptOutAgentOption = None,
    blocks: Blocks = None,
    model: ModelFolder = None,
) -> None:
    """Say which rules decide each layer group's weight for one class of data."""
    from govray.governance.policy.depth_policy import PER_CORPUS
    from govray.governance.policy.lint import explain as explain_class

    policy = _read(path)
    described = _described(stated or ())
    reserved = _reserved(url, opt_outs, opt_out_agent, "opt_out" in described)
    if reserved is not None:
        described["opt_out"] = reserved.opt_out
    if credential is not None and license is None and reserved is None:
        cls = _class_of(credential)
    elif license is not None and credential is None:
        cls = _class(corpus, license, license_category, jurisdiction, sensitivity, use, described)
    else:
        raise UsageError(
            "explain needs a credential or a licence, not both; a URL goes with a licence",
            where="--credential, --license",
            do="Give one of the two.",
        )
    try:
        explanation = explain_class(policy, cls, _groups(policy, blocks, model))
    except Refused as error:
        if reserved is None or reserved.opt_out != "reserved":
            raise
        raise Refused(error.what, where=f"{url}, {reserved.told}", do=error.do) from None
    decision = explanation.decision
    report(
        {
            **({"url": reserved.told} if reserved else {}),
            "policy": str(policy),
            "class": cls.to_json(),
            "profile": decision.label,
            "rules": list(decision.rules),
            "quarantinedBy": decision.quarantined_by,
            "adapter": decision.adapter,
            "rank": decision.rank,
            "groups": [vars(each) for each in explanation.groups],
            "phases": [
                {"fromStep": each.from_step, "groups": [vars(group) for group in each.groups]}
                for each in explanation.phases
            ],
            "memorization": explanation.memorization,
            "fallback": _fallback(explanation.fallback),
        }
    )
    line(f"{policy}, {cls}")
    if reserved is not None:
        field("url", reserved.told)
    field("profile", decision.label)
    field("rules", ", ".join(decision.rules))
    if decision.quarantined_by is not None:
        field("quarantined", f"by rule {decision.quarantined_by}: its records train nothing")
        return
    _print_reasons(explanation.groups, decision.rank)
    for phase in explanation.phases:
        line(f"From step {phase.from_step} on:")
        _print_reasons(phase.groups, decision.rank)
    if any(policy.profiles[name].adapter == PER_CORPUS for name in decision.profiles):
        line("Each corpus of this profile is a stream of its own: rows_per_step counts for each.")
    if explanation.memorization is not None:
        field("memorization", f"{explanation.memorization}, if it deviates from its reserve")
    if explanation.fallback is not None:
        groups = ", ".join(explanation.fallback.route.groups)
        field("fallback", f"{explanation.fallback.profile}: after a gate its rows train {groups}")


def _described(stated: Iterable[str]) -> dict[str, Any]:
    """Attributes of a description, from ``ATTRIBUTE=VALUE`` as people type it."""
    from govray.governance.policy.credential import DESCRIBED
    from govray.governance.policy.depth_policy import Match

    found: dict[str, Any] = {}
    for each in stated:
        name, _, value = each.partition("=")
        if name not in DESCRIBED:
            raise UsageError(
                f"{name!r} is no attribute of a description",
                where="--stated",
                do=f"Write ATTRIBUTE=VALUE, with one of {', '.join(DESCRIBED)}",
            )
        found[name] = [*found.get(name, ()), value] if name in Match.SEVERAL else value
    return found


class _Reserved(NamedTuple):
    opt_out: str
    told: str


def _reserved(
    url: str | None, file: Path | None, agents: list[str] | None, stated: bool
) -> _Reserved | None:
    if url is None and file is None and not agents:
        return None
    if url is None or file is None or stated:
        raise UsageError(
            "a URL is looked up in a snapshot, which says what is reserved",
            where="--url, --opt-outs",
            do="Give both, and no --stated opt_out.",
        )
    from govray.data.opt_outs.snapshot import EVERYBODY, NotLookedAt, read_opt_outs

    snapshot = read_opt_outs(file, agents or EVERYBODY)
    try:
        found = snapshot.reservation(url)
    except NotLookedAt as error:
        raise UsageError(str(error), where="--url", do="Take it into the snapshot first.") from None
    if found is not None:
        return _Reserved("reserved", str(found))
    return _Reserved("none_found", f"nothing is reserved, by files of {snapshot.last} at latest")


@app.command()
def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="The policy before.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The policy after.")],
    blocks: Blocks = None,
    model: ModelFolder = None,
) -> None:
    """List the classes that two policies treat differently.

    One representative class stands for each combination of values that the policies tell apart.
    Exit code 0 whether they differ or not.
    """
    from govray.governance.policy.lint import diff as compare
    from govray.governance.policy.lint import representative_classes

    before, after = _read(old), _read(new)
    groups = _groups(after, blocks, model)
    changes = compare(before, after, representative_classes(before, after), groups)
    report(
        {
            "old": str(before),
            "new": str(after),
            "changes": [
                {
                    "class": each.credential_class.to_json(),
                    "widens": each.widens,
                    "gains": list(each.gains),
                    "losses": list(each.losses),
                    "before": _outcome(each.before),
                    "after": _outcome(each.after),
                }
                for each in changes
            ],
        }
    )
    line(f"{before} → {after}: {len(changes)} classes are treated differently")
    for each in changes:
        line()
        line(str(each.credential_class), style="bold" if each.widens else None)
        field("was", f"{each.before.status} ({each.before.label})")
        field("is", f"{each.after.status} ({each.after.label})")
        if each.gains:
            field("gains", ", ".join(each.gains))
        if each.losses:
            field("loses", ", ".join(each.losses))
        was, now = each.before.phased, each.after.phased
        if was != now:
            field("phases", f"{was or 'none'} → {now or 'none'}")
        was, now = each.before.follows, each.after.follows
        if was != now:
            field("memorization", f"{was or 'not monitored'} → {now or 'not monitored'}")


@app.command()
def calibrate(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Attested runs, or model folders.")
    ],
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            "--corpus", metavar="GLOB", help="Only these corpora. Default: all public ones."
        ),
    ] = None,
    odds: Annotated[
        list[float] | None,
        typer.Option(
            "--odds",
            metavar="ODDS",
            min=1,
            help="A tolerated odds ratio to look at, beside others.",
        ),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="FILE", help="Put the one --odds into this policy."),
    ] = None,
) -> None:
    """Show what other tolerances would have flagged in these runs: the operating curve.

    Reads the entropy profiles of the runs' ledgers. --into replaces `odds: calibrated` in a
    policy's source by the tolerance that you chose. Sign the policy afterwards.
    """
    if into is not None and len(odds or ()) != 1:
        raise UsageError("--into needs one --odds", do="Name the tolerance that you choose")
    if not all(map(math.isfinite, odds or ())):
        raise UsageError("--odds is not a number", do="Name a tolerance from 1 on, such as 1.5")
    observed = [observed_run.read_observed(path, corpus or ["*"]) for path in runs]
    points, reads = observed_run.curve_of(observed, odds or ())
    if into is not None and odds:
        text = user_files.read(into).decode(errors="replace")
        said, places = _CALIBRATED.subn(rf"\g<1>{odds[0]:g}", text)
        if places != 1:
            raise UsageError(
                f"it says `odds: calibrated` {places} times on a line of its own, not once",
                where=str(into),
                do="Write `odds: calibrated` into its memorization section",
            )
        user_files.write(into, said.encode())
    report(
        {
            "curve": [
                {k if k != "until" else "profiles_until": v for k, v in vars(each).items()}
                for each in points
            ],
            "reads": reads,
        }
    )
    observed_run.show(points, reads)


def _read(path: Path) -> Policy:
    from govray.governance.policy.depth_policy import Policy
    from govray.governance.policy.policy_yaml import read_policy

    if path.suffix == ".json":
        return user_files.document(Policy, path)
    return read_policy(user_files.read(path), name=str(path))


def _root(path: Path) -> TrustRoot | None:
    """The trust root that a file holds, as its source or signed; None if it holds another thing."""
    from govray.cli import source_files
    from govray.governance.formats.statement import claimed_type
    from govray.governance.formats.strict_yaml import read_yaml
    from govray.governance.trust.authority import TrustRoot

    if path.suffix == ".json":
        is_root = claimed_type(user_files.envelope(path)) == TrustRoot.PREDICATE_TYPE
        return user_files.document(TrustRoot, path) if is_root else None
    value = read_yaml(user_files.read(path), name=str(path)).value
    if not isinstance(value, dict) or "authorities" not in value:
        return None
    document = source_files.read(path).document
    return document if isinstance(document, TrustRoot) else None


def _class_of(path: Path) -> CredentialClass:
    from govray.cli import source_files
    from govray.governance.policy.credential import Credential

    if path.suffix == ".json":
        return user_files.document(Credential, path).credential_class
    document = source_files.read(path).document
    if not isinstance(document, Credential):
        raise UsageError("this is not a credential", where=str(path), do="Name a credential.")
    return document.credential_class


def _class(
    corpus: str,
    license: str,
    license_category: LicenseCategory | None,
    jurisdiction: str,
    sensitivity: Sensitivity,
    use: Use | None,
    described: dict[str, Any],
) -> CredentialClass:
    from govray.governance.policy.credential import CredentialClass
    from govray.governance.trust import license as spdx

    try:
        category = license_category or spdx.category(license)
        if category is None:
            raise UsageError(
                f"the licence category does not follow from {license!r}",
                where="--license-category",
                do="State it: the issuer of a LicenseRef knows its terms.",
            )
        fields = {
            "corpus": corpus,
            "license": spdx.normalise(license),
            "license_category": category,
            "jurisdiction": jurisdiction,
            "sensitivity": sensitivity,
            "use": use or spdx.use(license),
            **described,
        }
        return CredentialClass.from_source(fields, where="the class")
    except Malformed as error:
        raise UsageError(error.what, where=error.where, do=error.do) from None


def _groups(policy: Policy, blocks: int | None, model: Path | None) -> tuple[str, ...]:
    """The layer groups to explain for: a model's, or those of a plain stack of blocks."""
    if blocks is not None and model is not None:
        raise UsageError("both a number of blocks and a model", where="--blocks", do="Give one.")
    if model is not None:
        from govray.governance.attestation import model_folder
        from govray.governance.attestation.model_attestation import Attestation

        return user_files.document(Attestation, model / model_folder.ATTESTATION).base_groups
    stack = (f"block.{i}" for i in range(blocks or DEFAULT_BLOCKS))
    return ("embedding", *stack, "final_norm", "head", *(policy.groups or ()))


def _print_reasons(groups: Sequence[GroupReason], rank: int | None) -> None:
    grid = table("layer group", "weight", "decided by", right=("weight",))
    for each in groups:
        told = f" (rank {rank})" if each.group.startswith("adapter:") else ""
        grid.row(each.group + told, f"{each.weight:g}", ", ".join(each.rules))
    print_table(grid)


def _fallback(fallback: Fallback | None) -> dict[str, Any] | None:
    if fallback is None:
        return None
    return {"profile": fallback.profile, "route": fallback.route.to_json()}


def _outcome(outcome: ClassOutcome) -> dict[str, Any]:
    return {
        "status": outcome.status,
        "label": outcome.label,
        "weights": dict(outcome.weights),
        "phases": [
            {"fromStep": each.from_step, "weights": dict(each.weights)} for each in outcome.phases
        ],
        "rank": outcome.rank,
        "memorization": outcome.memorization,
        "fallback": _fallback(outcome.fallback),
    }
