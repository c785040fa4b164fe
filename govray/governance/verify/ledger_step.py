"""Step 10: the ledger follows from plan, routes, gates and policy, and its head was signed.

* Each leaf has the plan's ranges and counts, less the corpora that a gate left out. It names the
  fallback's route for those that a gate sent there, and no other. By the policy a route may be in a
  later phase: then it names that phase's. Where rows are masked, loss targets are compared row by
  row if the records were read. Else they are bounded.
* Gradient norms are of the plan's rows on every rank, and only where a route permits a gradient.
* Gates for memorization, and branches, follow from the entropy profiles.
* The first lines are those of the run's ancestors.
* A run that early stopping ended has as many steps as it states.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from govray.errors import CouldNotCheck, Refused
from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import Attestation, incidents
from govray.governance.attestation.model_folder import Bundle
from govray.governance.attestation.selection_taint import ended_early
from govray.governance.formats.document import parse_time
from govray.governance.formats.signed_note import verify_checkpoint
from govray.governance.policy.corpus_routes import CorpusRoutes
from govray.governance.policy.depth_policy import Policy
from govray.governance.policy.route import Route
from govray.governance.record import row_counts
from govray.governance.record.ancestry import check_ancestry
from govray.governance.record.batch_plan import BatchPlan, slice_rank
from govray.governance.record.gates import Gate, changed_routes
from govray.governance.record.ledger import GradientNorms, Leaf, Ledger
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.record.prepared_records import TargetCounts
from govray.governance.trust.trust_state import Verified

MAX_ROWS = 1 << 24
"""Rows that a verification counts by default: some seconds, and half a gigabyte at most."""

_STEPS_AT_ONCE = 4096


def check_ledger(
    folder: Bundle,
    attested: Verified[Attestation],
    policy: Policy,
    manifest: Manifest,
    routes: CorpusRoutes,
    gates: Sequence[Gate],
    max_rows: int | None,
    targets: TargetCounts | None = None,
) -> Ledger:
    """Gates, every leaf, and the head of their tree; returns the ledger.

    Args:
        max_rows: Rows that the steps may have read; None for any number.
        targets: Says how many loss targets masked rows have; None if the records were not read.

    Raises:
        CouldNotCheck: The leaves state more rows than ``max_rows``.
    """
    attestation = attested.document
    _check_gates(gates, policy, attestation, routes)
    digest = attestation.files[model_folder.LEDGER]
    data = folder.read(model_folder.LEDGER, limit=model_folder.MAX_LINES, digest=digest)
    ledger = Ledger.read(attestation.run.id, data)
    head = attestation.ledger
    root = "sha256:" + ledger.root.hex()
    if (head.origin, head.size, head.root) != (ledger.origin, ledger.size, root):
        raise Refused("size or root are not those of the ledger", where="attestation ledger")
    _check_note(folder, attested, ledger)
    check_ancestry(attestation.run.id, attestation.run.ancestry or (), ledger.leaves)
    _check_end(attestation, ledger)
    _check_rows(ledger, max_rows)
    for start in range(0, len(ledger.steps), _STEPS_AT_ONCE):
        some = ledger.steps[start : start + _STEPS_AT_ONCE]
        _check_leaves(some, attestation, manifest, gates, routes, targets)
    if manifest.masked and targets is None:
        _check_totals(ledger, attestation.plan, manifest)
    _check_gated(gates, ledger)
    steps = {(leaf.branch, leaf.step): leaf for leaf in ledger.steps}
    for norms in ledger.norms:
        _check_norms(norms, steps[norms.branch, norms.step], attestation.plan, routes)
    _check_incidents(attestation, policy, routes, manifest, ledger, gates)
    return ledger


def _check_gates(
    gates: Sequence[Gate], policy: Policy, attestation: Attestation, routes: CorpusRoutes
) -> None:
    """Gates are of corpora that the run read, in steps and at times that it had, and lead to the
    policy's fallbacks."""
    if any(gate.legal for gate in gates) and policy.on_expiry != "gate":
        raise Refused("the policy stops a run where this one gated", where=model_folder.GATES)
    started, finished = parse_time(attestation.run.started), parse_time(attestation.run.finished)
    plan = attestation.plan
    for gate in gates:
        where = f"gate of corpus {gate.corpus} in step {gate.step}"
        if gate.corpus not in plan.corpora or gate.corpus in plan.excluded:
            raise Refused("the run read no such corpus", where=where)
        due = None if gate.legal else routes.fallbacks.get(gate.corpus)
        if gate.fallback != (due.profile if due else None):
            raise Refused(
                f"it {_falling_back(gate.fallback)}, and the policy says that it "
                f"{_falling_back(due.profile if due else None)}",
                where=where,
            )
        if gate.step >= plan.max_steps:
            raise Refused(f"the plan has {plan.max_steps} steps", where=where)
        if gate.time is not None and not started <= parse_time(gate.time) <= finished:
            raise Refused(f"at {gate.time}, when the run did not go on", where=where)


def _falling_back(profile: str | None) -> str:
    return f"falls back to profile {profile!r}" if profile else "leaves the corpus out"


def _check_rows(ledger: Ledger, limit: int | None) -> None:
    """Before any row is looked at: the steps read at most ``limit``, None for any number. A few
    bytes state any number of rows. Each takes time to find in the plan, and up to 24 bytes."""
    rows = sum(stop - start for leaf in ledger.steps for start, stop in leaf.streams.values())
    if limit is not None and rows > limit:
        raise CouldNotCheck(
            f"the ledger states {rows:,} rows that steps read, and {limit:,} are counted at most",
            where=model_folder.LEDGER,
            do="If the run was that large, allow it with --max-rows",
        )


def _check_end(attestation: Attestation, ledger: Ledger) -> None:
    """A run that states that it ended early has just as many steps."""
    ended = ended_early(attestation.selection_taint or ())
    done = ledger.steps[-1].step + 1 if ledger.steps else 0
    if ended is not None and ended != done:
        raise Refused(
            f"early stopping ended the run after {ended} steps, the ledger has {done}",
            where=model_folder.LEDGER,
        )


def _check_incidents(
    attestation: Attestation,
    policy: Policy,
    routes: CorpusRoutes,
    manifest: Manifest,
    ledger: Ledger,
    gates: Sequence[Gate],
) -> None:
    """Gates for memorization, and what the attestation says of it, follow from the profiles."""
    told = incidents(
        policy,
        attestation.corpora,
        routes,
        attestation.base_groups,
        ledger,
        manifest,
        attestation.plan.max_steps,
    )
    last = ledger.steps[-1].step if ledger.steps else 0
    follow = set(told.gates(last + 1)) if told else set()
    for gate in sorted({g for g in gates if not g.legal} ^ follow, key=lambda gate: gate.place):
        raise Refused(
            "the gate is missing, though it follows from the entropy profiles"
            if gate in follow
            else "the gate does not follow from the entropy profiles",
            where=f"gate of corpus {gate.corpus} in branch {gate.branch} step {gate.step}",
        )
    if attestation.memorization != (told.findings() if told else None):
        raise Refused(
            "it does not follow from the ledger's entropy profiles",
            where="attestation memorization",
        )


def _check_gated(gates: Sequence[Gate], ledger: Ledger) -> None:
    if not gates:
        return
    done = {(leaf.branch, leaf.step) for leaf in ledger.steps}
    starts: dict[int, int] = {}
    for branch, step in sorted(done):
        starts.setdefault(branch, step)
    held = {(gate.branch, gate.corpus, gate.legal): gate.step for gate in gates}
    for gate in gates:
        where = f"gate of corpus {gate.corpus}"
        if (gate.branch, gate.step) not in done:
            raise Refused(
                f"it is in branch {gate.branch} step {gate.step}, which the ledger does not have",
                where=where,
            )
        for later, start in starts.items():
            # Those for memorization follow from the profiles, and were compared with them.
            if gate.legal and later > gate.branch and held.get((later, gate.corpus, True)) != start:
                raise Refused(f"it was lifted in branch {later}", where=where)


def _check_note(folder: Bundle, attested: Verified[Attestation], ledger: Ledger) -> None:
    digest = attested.document.files[model_folder.CHECKPOINT]
    data = folder.read(model_folder.CHECKPOINT, limit=model_folder.MAX_NOTE, digest=digest)
    refusals: list[Refused] = []
    for key in attested.authority.keys:
        if key.keyid not in attested.keyids:
            continue
        try:
            note = verify_checkpoint(data, key, origin=ledger.origin)
        except Refused as error:
            refusals.append(error)
            continue
        if (note.size, note.root) != (ledger.size, ledger.root):
            raise Refused("it signs another size or root", where=model_folder.CHECKPOINT)
        return
    raise refusals[0]


def _check_leaves(
    leaves: Sequence[Leaf],
    attestation: Attestation,
    manifest: Manifest,
    gates: Sequence[Gate],
    routes: CorpusRoutes,
    targets: TargetCounts | None,
) -> None:
    """Refuses the first leaf that does not follow. Its rows are counted once its ranges do."""
    planned: list[Mapping[str, tuple[int, int]]] = []
    refused: Refused | None = None
    for leaf in leaves:
        try:
            planned.append(_check_ranges(leaf, attestation))
        except Refused as error:
            refused = error
            break
    steps = [(leaf.step, ranges) for leaf, ranges in zip(leaves, planned, strict=False)]
    counted = row_counts.planned_counts(attestation.plan, manifest, steps, targets)
    exact = targets is not None or not manifest.masked
    for leaf, counts in zip(leaves, counted, strict=False):
        changed = changed_routes(gates, routes.fallbacks, leaf.branch, leaf.step, routes.phased)
        _check_counts(leaf, counts, changed, exact)
    if refused:
        raise refused


def _check_ranges(leaf: Leaf, attestation: Attestation) -> Mapping[str, tuple[int, int]]:
    """Returns stream → range of positions."""
    plan = attestation.plan
    where = f"ledger branch {leaf.branch} step {leaf.step}"
    if leaf.policy != attestation.policy.digest:
        raise Refused("the step was under another policy", where=where)
    if leaf.plan != plan.digest:
        raise Refused("the step was under another plan", where=where)
    if leaf.step >= plan.max_steps:
        raise Refused(f"the plan has {plan.max_steps} steps", where=where)
    planned = {i: (r.start, r.stop) for i, r in plan.positions(leaf.step).items()}
    for stream in sorted(planned.keys() | leaf.streams.keys()):
        if planned.get(stream) != leaf.streams.get(stream):
            raise Refused(f"the range of stream {stream} is not the plan's", where=where)
    return planned


def _check_totals(ledger: Ledger, plan: BatchPlan, manifest: Manifest) -> None:
    """A branch's loss targets of a corpus are between what its epochs can have.

    Epochs read a corpus round and round. Each round has the manifest's total. What is beyond whole
    rounds, and what was not read, has at most a target for each token.
    """
    targets: Counter[tuple[int, str]] = Counter()
    rows: Counter[tuple[int, str]] = Counter()
    epochs: dict[tuple[int, str], list[int]] = {}
    for leaf in ledger.steps:
        for corpus, use in leaf.corpora.items():
            stream = plan.stream_of(corpus)
            assert stream is not None  # its counts follow from the plan
            start, stop = leaf.streams[stream.id]
            place = leaf.branch, corpus
            targets[place] += use.targets
            rows[place] += use.rows
            epochs.setdefault(place, []).extend((start // stream.n, (stop - 1) // stream.n))
    for (branch, corpus), touched in sorted(epochs.items()):
        stream = plan.stream_of(corpus)
        assert stream is not None
        member = next(each for each in stream.corpora if each.corpus == corpus)
        draws = (max(touched) - min(touched) + 1) * member.drawn
        rounds, more = divmod(draws, member.rows)
        total, full = manifest.stated_targets(corpus), manifest.context
        most = rounds * total + min(total, more * full)
        unread = draws - rows[branch, corpus]
        least = rounds * total + (max(0, total - (member.rows - more) * full) if more else 0)
        least = max(0, least - unread * full)
        if not least <= targets[branch, corpus] <= most:
            raise Refused(
                f"it states {targets[branch, corpus]} loss targets of corpus {corpus}, whose rows "
                f"have {least} to {most} in the epochs that it read",
                where=f"ledger branch {branch}",
            )


def _check_counts(
    leaf: Leaf,
    counts: Mapping[str, tuple[int, int]],
    changed: Mapping[str, Route | None],
    exact: bool,
) -> None:
    """Unless ``exact``, the counted loss targets are upper bounds."""
    left_out = {corpus for corpus, route in changed.items() if route is None}
    where = f"ledger branch {leaf.branch} step {leaf.step}"
    stated = {corpus: (use.rows, use.targets) for corpus, use in leaf.corpora.items()}
    for corpus in sorted(counts.keys() | stated.keys()):
        if corpus in left_out and corpus in stated:
            raise Refused(f"it used corpus {corpus}, which a gate left out", where=where)
        due, said = counts.get(corpus), stated.get(corpus)
        if not exact and due and said and said[1] <= due[1]:
            due = due[0], said[1]
        if corpus not in left_out and due != said:
            raise Refused(
                f"rows and targets of corpus {corpus} do not follow from the plan", where=where
            )
        sent = changed.get(corpus)
        route = sent.digest if sent else None
        if corpus in stated and leaf.corpora[corpus].route != route:
            raise Refused(
                f"rows of corpus {corpus} took {_by(leaf.corpora[corpus].route)}, and by the "
                f"phases and gates they take {_by(route)}",
                where=where,
            )


def _by(route: str | None) -> str:
    return f"route {route}" if route else "their own route"


def _check_norms(norms: GradientNorms, leaf: Leaf, plan: BatchPlan, routes: CorpusRoutes) -> None:
    """``leaf`` is that of the step, and was checked."""
    where = f"ledger branch {norms.branch} step {norms.step} gradient norms"
    for each in norms.passes:
        if each.rank >= leaf.world_size:
            raise Refused(f"the step had no rank {each.rank}", where=where)
    planned, stated = _rank_rows(leaf, plan), _pass_rows(norms)
    for rank, stream, corpus in sorted(planned.keys() | stated.keys()):
        if planned[rank, stream, corpus] != stated[rank, stream, corpus]:
            raise Refused(
                f"rank {rank} has {stated[rank, stream, corpus]} rows of corpus {corpus} in "
                f"stream {stream}, the plan {planned[rank, stream, corpus]}",
                where=where,
            )
    taken = {corpus: routes.taken(corpus, use.route) for corpus, use in leaf.corpora.items()}
    for corpus, squares in norms.squared_norms.items():
        if corpus not in leaf.corpora:
            raise Refused(f"the step read nothing of corpus {corpus}", where=where)
        for group in squares:
            if group not in taken[corpus].groups:
                raise Refused(
                    f"a gradient of corpus {corpus} in {group}, which its route forbids",
                    where=where,
                )
    # A norm left out would raise the others' shares.
    measured = {group for squares in norms.squared_norms.values() for group in squares}
    for corpus in leaf.corpora:
        for group in sorted(measured.intersection(taken[corpus].groups)):
            if group not in norms.squared_norms.get(corpus, {}):
                raise Refused(
                    f"{group} was measured, but not for corpus {corpus}, which updated it too",
                    where=where,
                )


def _rank_rows(leaf: Leaf, plan: BatchPlan) -> Counter[tuple[int, str, str]]:
    """(Rank, stream, corpus) → rows that the plan gives it in the leaf's step."""
    # By position, not by rank: a leaf may name any world size.
    return Counter(
        (slice_rank(stop - start, position - start, leaf.world_size), stream, corpus)
        for stream, (start, stop) in leaf.streams.items()
        for position, corpus, _ in plan.read(stream, range(start, stop))
        if corpus in leaf.corpora  # else a gate left it out
    )


def _pass_rows(norms: GradientNorms) -> Counter[tuple[int, str, str]]:
    """(Rank, stream, corpus) → rows in all its passes."""
    rows: Counter[tuple[int, str, str]] = Counter()
    for each in norms.passes:
        for corpus, count in each.corpora.items():
            rows[each.rank, each.stream, corpus] += count
    return rows
