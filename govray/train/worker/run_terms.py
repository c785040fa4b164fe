"""What a run's steps rest on, by its order: terms, alternatives, revocations, what is known of it.

Nothing here asks what computes gradients.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from govray.engine.steps.first_exchange import Terms
from govray.errors import Refused
from govray.governance.formats import canonical_json
from govray.storage.place import place
from govray.train.checkpoint.commit_folder import Folder, open_commit
from govray.train.inputs.order import Order
from govray.train.inputs.revocation_feed import RevocationFeed
from govray.train.run_folder.clock import instant
from govray.train.state.snapshot import STATE
from govray.train.validation.best_so_far import BestSoFar

NOTHING_YET = BestSoFar()
"""What a new run knows of the metric that it is judged by."""


def best_so_far(checkpoint: Folder | None) -> BestSoFar:
    """What the run knew when it made the commit that it begins with."""
    if checkpoint is None:
        return NOTHING_YET
    state: Any = canonical_json.parse_canonical(open_commit(checkpoint).files[STATE])
    return BestSoFar.of_state(state)


def require_groups(found: Mapping[str, Sequence[str]], order: Order) -> None:
    """See that a model's layer groups are those that the plan was made for."""
    if found == order.groups:
        return
    differing = sorted(
        name for name in {**found, **order.groups} if found.get(name) != order.groups.get(name)
    )
    raise Refused(
        f"the model's layer groups changed since the plan was made: {', '.join(differing)}",
        where="govern()",
        do="Build the same model on every worker and on every call of the loop",
    )


def alternatives(order: Order) -> dict[str, set[str]]:
    """Stream id → digests of the routes that a phase or a gate may send its rows to."""
    found: dict[str, set[str]] = {}
    for corpus, route in order.phased.items():
        if stream := order.plan.stream_of(corpus):
            found.setdefault(stream.id, set()).update(each.digest for each in route.later)
    for corpus, fallback in order.fallbacks.items():
        if stream := order.plan.stream_of(corpus):
            found.setdefault(stream.id, set()).add(fallback.route.digest)
    return found


def follow_revocations(order: Order) -> RevocationFeed | None:
    """The reader of the run's revocation lists, started; None if it follows none. On rank 0."""
    if not order.revocations:
        return None
    feed = RevocationFeed(order.revocations, place(order.folder), at=instant())
    feed.start()
    return feed


def terms_of(order: Order, decided: int, revoked: Callable[[], Mapping[str, datetime]]) -> Terms:
    """What the run's steps rest on; steps below ``decided`` repeat what was decided."""
    return Terms(
        policy_digest=order.policy_digest,
        plan_digest=order.plan.digest,
        corpora=sorted({c.corpus for s in order.plan.streams for c in s.corpora}),
        clock=time.time,
        valid_until=order.expiries,
        revoked=revoked,
        decided=decided,
    )
