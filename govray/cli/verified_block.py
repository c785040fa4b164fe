"""How a verified model is told: the VERIFIED block, and the same as JSON."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from govray.cli.output import field, line
from govray.storage.place import Place

if TYPE_CHECKING:
    from govray.governance.attestation.selection_taint import Selection
    from govray.governance.trust.revocation_list import Revocations
    from govray.governance.trust.trust_state import TrustState
    from govray.governance.verify.verifier import VerifiedModel

LEVELS = ("declared", "exclusion counted", "replay identical", "removed")

_LISTED = 5

NOT_SHOWN = "not shown are unrecorded data, licence truth, legality"


def print_verdict(model: VerifiedModel) -> None:
    attestation = model.attestation
    line(
        f"VERIFIED {_shown(model.path)}   {len(model.subjects)} files, "
        f"root {_short(attestation.ledger.root)}, signer {model.signer}",
        style="bold",
    )
    policy = model.policy
    field("policy", f"{policy.document}, signed by {policy.authority.name}")
    field("records", _records(model))
    reserve = model.manifest.document.reserve
    if reserve.share:
        field("reserve", f"a share of {reserve.share:g}, {reserve.drawn}")
    field("ledger", f"{len(model.ledger.steps)} steps, run {attestation.run.id}")
    if model.targets_bounded:
        field("targets", "bounded: how many each step has is the signer's word without --records")
    for head in model.heads:
        field("also", f"its first {head.size} leaves are those of a head signed elsewhere")
    if (who := attestation.execution.who) is not None:
        field("who", f"{who}, as the operator states")
    field("code", attestation.execution.code)
    field("isolation", attestation.execution.apart)
    if start := _start(model):
        field("started", start)
    for earlier in attestation.run.earlier_code or ():
        field("other code", f"from step {earlier.step} on: bits are comparable up to there")
    for each in attestation.run.ancestry or ():
        field("ancestor", f"run {each.run} to step {each.step}, ledger root {_short(each.root)}")
    for selection in attestation.selection_taint or ():
        by = f"by search {selection.search}" if selection.search else _stopping(selection)
        field("selected", f"{by}: {_compared(selection)}")
    if (result := attestation.validation) is not None:
        by = f"{len(result.corpora)} corpora held out" if result.corpora else "the training loop"
        field("validated", f"{result.metric} {result.value:.4g}, measured by {by}: as stated")
    field("levels", ", ".join(_levels(model)) or "every corpus reaches every layer group")
    for told in _phases(model):
        field("phases", told)
    for removal in attestation.removals:
        field("removed", f"adapter {removal.adapter}, {removal.removed}")
    for gate in model.gates:
        since = f" at {gate.since}" if gate.since else ""
        how = f"rerouted to {gate.fallback} " if gate.fallback else ""
        field("gated", f"{gate.corpus} {how}from step {gate.step}: {gate.reason}{since}")
    for found in _incidents(model):
        field("memorization", found)
    field("revoked", revocations(model))
    for stamp in model.timestamps:
        field("timestamp", f"attestation signed by {stamp}")
    if (cosigned := _witnesses(model)) is not None:
        field("witnesses", cosigned)
    field("assurance", f"{model.assurance_level}{_by_whom(model)}: {NOT_SHOWN}")
    field("trust", f"root {model.trust_root.root.name} v{model.trust_root.root.version}")
    for told in _uncovered(model):
        field("NOT COVERED", told)


def _witnesses(model: VerifiedModel) -> str | None:
    """The witnesses that cosigned the ledger's head; None where the trust root asks nobody."""
    if (policy := model.trust_root.root.witness_policy) is None:
        return None
    by = ", ".join(str(each) for each in model.cosignatures) or "none cosigned the ledger's head"
    return f"{len(model.cosignatures)} of {policy.threshold} asked for: {by}"


def _records(model: VerifiedModel) -> str:
    """How much was read of the records, and what remains the signer's word."""
    checked, of = model.checked.parts
    if model.depth == "full":
        targets = ", loss targets" if model.manifest.document.masked else ""
        return f"all read: roots, splits, tokens{targets} and rows follow from them"
    if model.depth == "sample":
        return (
            f"{checked} of {of} parts read, and they are as stated. One wrong part would be among "
            f"them with probability {model.checked.detection:.2g}"
        )
    return "not read (summary): whose they are, splits and packing are the signer's word"


def _uncovered(model: VerifiedModel) -> list[str]:
    """A line for each file that is not covered; folders of many get one line."""
    inert = [name for name in model.uncovered if name not in model.loadable]
    return [
        *_by_folder(
            model.loadable,
            "allowed here, and may be loaded or executed; the attestation says nothing of",
            "it",
        ),
        *_by_folder(inert, "the attestation says nothing about", "this file"),
    ]


def _by_folder(names: Sequence[str], told: str, one: str) -> list[str]:
    sizes = Counter(name.partition("/")[0] for name in names if "/" in name)
    many = {folder for folder, count in sizes.items() if count > _LISTED}
    alone = [f"{name}: {told} {one}" for name in names if name.partition("/")[0] not in many]
    folders = [f"{each}/: {told} {sizes[each]:,} files below it" for each in sorted(many)]
    return alone + folders


def _stopping(selection: Selection) -> str:
    if selection.ended is None:
        return "under early stopping, which did not end it"
    return f"by early stopping, after {selection.ended} steps"


def _compared(selection: Selection) -> str:
    by = " and ".join(filter(None, (selection.metric, selection.statistic)))
    held_out = f", and on {len(selection.validation)} held out" if selection.validation else ""
    return f"{by}, which depend on {len(selection.corpora)} corpora at every layer{held_out}"


def _incidents(model: VerifiedModel) -> list[str]:
    """What was decided about corpora that the model was found to memorize, a line each."""
    findings = model.attestation.memorization
    if findings is None:
        return []
    if not findings.measured:
        return ["monitored, but no corpus could be measured: as stated"]
    few = f"no profile of the run could flag {len(findings.unmeasurable)} corpora: too few records"
    unable = [few] if findings.unmeasurable else []
    if not findings.decisions:
        return [f"{len(findings.measured)} corpora measured, none flagged: as stated", *unable]
    return [
        f"{each.corpus} {each.followed}, after step {each.step} by {', '.join(each.layers)}"
        for each in findings.decisions
    ] + unable


def to_json(model: VerifiedModel) -> dict[str, Any]:
    """The verdict as one JSON value; large counts are strings, as everywhere."""
    from govray.governance.formats.document import format_time

    attestation = model.attestation
    return {
        "verified": True,
        "path": str(model.path),
        "attestation": model.digest,
        "signer": model.signer,
        "keyids": sorted(model.keyids),
        "trustRoot": {
            "name": model.trust_root.root.name,
            "version": model.trust_root.root.version,
            "digest": model.trust_root.digest,
        },
        "run": attestation.run.to_json(),
        "execution": attestation.execution.to_json(),
        "policy": attestation.policy.to_json(),
        "depth": model.depth,
        "lossTargets": "bounded" if model.targets_bounded else "exact",
        "recordParts": {"read": model.checked.parts[0], "all": model.checked.parts[1]},
        "reserve": model.manifest.document.reserve.to_json(),
        "ledger": attestation.ledger.to_json(),
        "alsoHeads": [
            {"size": str(head.size), "root": "sha256:" + head.root.hex()} for head in model.heads
        ],
        "gradientNormSamples": str(len(model.ledger.norms)),
        "subjects": {each.name: each.sha256 for each in model.subjects},
        "uncovered": list(model.uncovered),
        "uncoveredLoadable": list(model.loadable),
        "coverage": [each.to_json() for each in attestation.coverage],
        "pretrained": {group: list(labels) for group, labels in attestation.pretrained.items()},
        "taint": [each.to_json() for each in attestation.taint],
        "validation": attestation.validation and attestation.validation.to_json(),
        "selectionTaint": [each.to_json() for each in attestation.selection_taint or ()],
        "levels": {corpus: dict(groups) for corpus, groups in attestation.levels.items()},
        "phaseExclusions": {
            corpus: {group: [list(steps) for steps in closed] for group, closed in groups.items()}
            for corpus, groups in (attestation.phase_exclusions or {}).items()
        },
        "replayedBy": {
            corpus: [{"party": each.party, "operator": each.is_operator} for each in who]
            for corpus, who in sorted(model.replayed_by.items())
        },
        "removals": [each.to_json() for each in attestation.removals],
        "gates": [each.to_json() for each in model.gates],
        "memorization": attestation.memorization.to_json() if attestation.memorization else None,
        "revocations": None
        if model.revocations is None or not model.revocations.lists
        else [
            {
                "issuer": each.document.issuer,
                "sequence": str(each.document.sequence),
                "issued": each.document.issued,
                "digest": each.digest,
            }
            for each in model.revocations.lists
        ],
        "revocationsPassedOver": list(model.revocations.passed_over) if model.revocations else [],
        "revokedSince": {
            name: {"since": format_time(each.since), "reason": each.reason, "issuer": each.issuer}
            for name, each in model.revoked.items()
        },
        "quarantine": [each.to_json() for each in attestation.quarantine],
        "assuranceLevel": model.assurance_level,
        "replayChecks": [
            {
                "witness": each.authority.name,
                "digest": each.digest,
                "check": each.document.to_json(),
            }
            for each in model.replay_checks
        ],
        "timestamps": [
            {"authority": each.authority, "time": format_time(each.time)}
            for each in model.timestamps
        ],
        "cosignatures": [
            {"witness": each.witness, "time": format_time(each.time)} for each in model.cosignatures
        ],
        "disclaimer": attestation.disclaimer,
    }


def revocations(model: VerifiedModel) -> str:
    """What was revoked since the run, as far as the given lists say."""
    from govray.governance.formats.document import format_time

    if model.revocations is None or not model.revocations.lists:
        return checked_lists(model.trust_root)
    lists = _lists(model.trust_root)
    since = ", ".join(
        f"{name} since {format_time(each.since)} ({each.reason})"
        for name, each in sorted(model.revoked.items())
    )
    return f"{since or 'nothing'}, by {lists}"


def checked_lists(trust: TrustState) -> str:
    if trust.revocations is None:
        return "revocations not checked: no list given"
    if not trust.revocations.lists:
        return f"revocations not checked: {_passed_over(trust.revocations)}"
    return f"nothing, by {_lists(trust)}"


def _lists(trust: TrustState) -> str:
    if trust.revocations is None:
        return ""
    told = ", ".join(
        f"{each.document} of {each.document.issued}" for each in trust.revocations.lists
    )
    over = _passed_over(trust.revocations)
    return f"{told}; {over}" if over else told


def _passed_over(lists: Revocations) -> str:
    return "; ".join(f"passed over: {each}" for each in lists.passed_over)


def exclusion_level(model: VerifiedModel, corpus: str) -> int | None:
    """What holds for every layer group of the base model that ``corpus`` does not reach.

    None if it reaches them all. Other corpora's adapters are left out: nobody asks whether a corpus
    reaches those.
    """
    stated = model.attestation.levels.get(corpus, {})
    base = [level for group, level in stated.items() if group in model.attestation.base_groups]
    return min(base, default=None)


def _start(model: VerifiedModel) -> str:
    """From which existing weights the run started, and what they bring; empty if from none."""
    attestation = model.attestation
    brought = sorted({label for labels in attestation.pretrained.values() for label in labels})
    files = attestation.run.initial_weights or {}
    if not files and not brought:
        return ""
    names = ", ".join(f"{name} {_short(digest)}" for name, digest in sorted(files.items()))
    shown = ", ".join(brought[:_LISTED]) + (" …" if len(brought) > _LISTED else "")
    if attestation.run.initial_optimizer:
        names += f" and its run's optimizer, commit {_short(attestation.run.initial_optimizer)}"
    return f"from {names or 'existing weights'}, which bring {shown or 'nothing recorded'}"


def _by_whom(model: VerifiedModel) -> str:
    names = sorted({each.authority.name for each in model.replay_checks})
    return f" by {', '.join(names)}" if names else ""


def _levels(model: VerifiedModel) -> list[str]:
    """One phrase per licence category or corpus that is kept out of some layer group.

    Corpora of one category that share a level are named by the category; a
    corpus with an adapter of its own is always named itself.
    """
    lowest = {
        entry.corpus: level
        for entry in model.attestation.corpora
        if (level := exclusion_level(model, entry.corpus)) is not None
    }
    named: dict[str, set[str]] = defaultdict(set)
    for entry in model.attestation.corpora:
        if entry.corpus in lowest:
            alone = entry.route.adapter is not None
            named[entry.corpus if alone else entry.credential_class.license_category].add(
                entry.corpus
            )
    phrases = []
    for name, corpora in sorted(named.items()):
        # The lowest level holds for all of them.
        level = min(lowest[corpus] for corpus in corpora)
        phrases.append(f"{name} {level} ({LEVELS[level]}{_replayers(model, corpora, level)})")
    return phrases


def _phases(model: VerifiedModel) -> list[str]:
    """Which layer groups were closed to corpora in which steps, a line for each profile and span
    of steps."""
    base = list(model.attestation.base_groups)
    end = model.attestation.plan.max_steps
    excluded = model.attestation.phase_exclusions or {}
    lines: dict[tuple[str, tuple[tuple[int, int], ...], tuple[str, ...]], list[str]] = {}
    for entry in model.attestation.corpora:
        by_steps: dict[tuple[tuple[int, int], ...], list[str]] = {}
        for group, steps in excluded.get(entry.corpus, {}).items():
            by_steps.setdefault(steps, []).append(group)
        for steps, groups in sorted(by_steps.items()):
            told = tuple(sorted(groups, key=base.index))
            lines.setdefault((entry.profile, steps, told), []).append(entry.corpus)
    return [
        f"{profile} ({_some(corpora)}): {_groups(groups, base)} closed "
        f"{' and '.join(_span(*span, end) for span in steps)}"
        for (profile, steps, groups), corpora in lines.items()
    ]


def _some(names: list[str]) -> str:
    return f"{len(names)} corpora" if len(names) > _LISTED else ", ".join(names)


def _groups(groups: tuple[str, ...], base: list[str]) -> str:
    """Layer groups in the model's order; those that stand together by the first and the last."""
    runs: list[list[str]] = []
    for group in groups:
        if runs and base.index(runs[-1][-1]) + 1 == base.index(group):
            runs[-1].append(group)
        else:
            runs.append([group])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def _span(start: int, stop: int, end: int) -> str:
    if start == 0:
        return f"until step {stop}"
    return f"from step {start} on" if stop == end else f"from step {start} until step {stop}"


def _replayers(model: VerifiedModel, corpora: set[str], level: int) -> str:
    """The parties that replayed the run without each of ``corpora``; from level 2 on."""
    if level < LEVELS.index("replay identical"):
        return ""
    by = [{str(each) for each in model.replayed_by.get(corpus, ())} for corpus in corpora]
    names = set.intersection(*by) or set.union(*by)
    return f"{', by' if level == 2 else '; replayed by'} {' and '.join(sorted(names))}"


def _shown(path: Place) -> Place:
    """``path`` as a person in this folder would write it."""
    if not isinstance(path, Path):
        return path
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _short(digest: str) -> str:
    kind, _, digits = digest.partition(":")
    return f"{kind}:{digits[:8]}…"
