"""What a policy asks of a run's monitor: which corpora to measure, and what follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from govray.errors import Refused
from govray.governance.policy.corpus_routes import CorpusRoutes
from govray.governance.policy.depth_policy import Policy
from govray.governance.policy.memorization_section import Monitoring
from govray.governance.record.entropy_profile import EntropyProfile, MonitoredCorpus
from govray.governance.record.incidents import LEAST_ROWS, Incidents, flaggable, subjects_of
from govray.governance.record.ledger import AnyLeaf, Leaf
from govray.governance.record.prepare_manifest import Manifest


@dataclass(frozen=True)
class Monitored:
    """What a policy asks of a run's monitor."""

    section: Monitoring
    subjects: Mapping[str, MonitoredCorpus]

    def follow(self, leaves: Iterable[AnyLeaf]) -> Incidents:
        """The incidents of a run so far, from all the leaves that it has recorded."""
        told = Incidents(self.section, self.subjects)
        for leaf in leaves:
            if isinstance(leaf, EntropyProfile):
                told.take(leaf)
            elif isinstance(leaf, Leaf):
                told.reach(leaf.branch, leaf.step)
        return told

    def story(self, profiles: Iterable[EntropyProfile], starts: Sequence[int]) -> Incidents:
        """The same, from the profiles and the first step of every branch."""
        told = Incidents(self.section, self.subjects)
        for profile in profiles:
            while told.branch < profile.branch:
                told.reach(told.branch + 1, starts[told.branch + 1])
            told.take(profile)
        while told.branch < len(starts) - 1:
            told.reach(told.branch + 1, starts[told.branch + 1])
        return told


def monitored(
    policy: Policy,
    rules: Mapping[str, Sequence[str]],
    routes: CorpusRoutes,
    base_groups: Sequence[str],
    manifest: Manifest,
    steps: int,
    excluded: Iterable[str] = (),
) -> Monitored | None:
    """What the policy asks for; None if it has no monitor.

    Args:
        routes: Corpus → route, of every corpus that was admitted; and the fallbacks.
        base_groups: The model's layer groups, adapters excepted.
        excluded: Corpora that the plan does not read.

    Raises:
        Refused: A rule gates or rolls back a corpus that has too few records for its evidence to
            ever suffice, or too small a reserve. Or its rows are no packed text.
    """
    if policy.memorization is None:
        return None
    refuse_unwatchable(policy, rules, manifest, excluded)
    subjects = subjects_of(policy, rules, routes, base_groups, manifest, steps)
    return Monitored(policy.memorization, subjects)


def refuse_unwatchable(
    policy: Policy,
    rules: Mapping[str, Sequence[str]],
    manifest: Manifest,
    excluded: Iterable[str] = (),
) -> None:
    """Raise what `monitored` would, without a model. ``rules``: corpus → the rules that match."""
    section = policy.memorization
    for corpus in sorted({each.corpus for each in manifest.corpora} - set(excluded)):
        if section is None or not section.watches(rules[corpus]):
            continue
        if (action := section.action(rules[corpus])) == "flag":
            continue
        watched = f"corpus {corpus!r} is to be watched ({action}), but"
        if manifest.rows is not None:
            raise Refused(
                f"{watched} what is measured is packed text, and the run reads "
                f"{manifest.rows.run_kind}",
                where=f"policy {policy}",
                do="Let the rule only flag: then such a run is not measured",
            )
        if manifest.reserve_rows(corpus) < LEAST_ROWS:
            raise Refused(
                f"{watched} has {manifest.reserve_rows(corpus)} reserve rows to measure it against",
                where=f"policy {policy}",
                do="Raise data.reserve, or let the rule only flag",
            )
        if not flaggable(section, corpus, manifest):
            train, reserve = manifest.split_counts(corpus)
            raise Refused(
                f"{watched} {train} records that train and {reserve} in its reserve can never "
                f"give the evidence that fdr {section.fdr:g} asks for",
                where=f"policy {policy}",
                do="Give the corpus more records, raise data.reserve or probe_rows, or let the "
                "rule only flag",
            )
