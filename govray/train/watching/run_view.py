"""A run as a notebook shows it: its curves, and which corpus reached which layers.

```python
from govray.train import run_view
run_view("runs/RUN", trust_root="policies/root.json")
```

The table is that of the attestation, so it stands there only if the model verifies. The curves are
what the run said of itself. The HTML has no script, style sheet or address, and all text in it is
escaped. Names in a run's folder are somebody's, and a notebook is read by others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from govray.errors import UsageError
from govray.governance.attestation.model_folder import ATTESTATION, MODEL
from govray.governance.verify.verifier import VerifiedModel, verify
from govray.printable import printable
from govray.storage.place import Place, place
from govray.train.run_folder import events
from govray.train.run_folder.event_rows import MetricValue, numbers

MOST_CURVES = 12
MOST_POINTS = 500
MOST_CELLS = 4000

_WIDTH, _HEIGHT, _MARGIN = 420, 160, 8

Curve = Sequence[tuple[int, float]]


@dataclass(frozen=True, kw_only=True)
class RunView:
    """What a notebook shows of a run.

    Attributes:
        curves: Metric → (step, value), in order of steps.
        model: Its verified model; None where it has none yet.
    """

    name: str
    curves: Mapping[str, Curve]
    model: VerifiedModel | None

    def __repr__(self) -> str:
        last = ", ".join(f"{name} {points[-1][1]:.4g}" for name, points in self.curves.items())
        return printable(f"run {self.name}: {last or 'no numbers yet'}")

    def _repr_html_(self) -> str:
        figures = "".join(
            _figure(name, points) for name, points in [*self.curves.items()][:MOST_CURVES]
        )
        left = len(self.curves) - MOST_CURVES
        more = f"<p>{left} further metrics are not drawn.</p>" if left > 0 else ""
        return f"<h3>{_text(self.name)}</h3>{figures}{more}{_lineage(self.model)}"


def run_view(
    run: str | Place,
    *,
    trust_root: Path | str | bytes | None = None,
    revocations: Sequence[Path | str | bytes] = (),
) -> RunView:
    """The view of a run's folder, or of a model folder.

    Args:
        run: A path or URL.
        trust_root: Envelope of the root, or its path; the pinned one by default.
        revocations: As `govray.verify` takes them.

    Raises:
        Refused: The run has a model, and it does not verify.
        CouldNotCheck: It could not be checked.
        UsageError: There is neither a run nor a model, or no trust root.
    """
    try:
        folder = place(run)
    except ValueError as error:
        raise UsageError(str(error), where="run_view") from None
    model = folder if (folder / ATTESTATION).is_file() else folder / MODEL
    log = events.read(folder)
    attested = (model / ATTESTATION).is_file()
    if not log and not attested:
        raise UsageError(
            "there is neither a run nor a model in it",
            where=str(folder),
            do="Name a run's folder, below storage_path",
        )
    root = Path(trust_root) if isinstance(trust_root, str) else trust_root
    verified = verify(model, trust_root=root, revocations=revocations) if attested else None
    return RunView(name=folder.name, curves=_curves(numbers(log)), model=verified)


def _curves(values: Sequence[MetricValue]) -> dict[str, Curve]:
    found: dict[str, list[tuple[int, float]]] = {}
    for each in values:
        if not each.archived and math.isfinite(each.value):
            found.setdefault(f"{each.group}/{each.name}", []).append((each.step, each.value))
    # First the loss, then by name.
    names = sorted(found, key=lambda name: (name != "training/loss", name))
    return {name: _thinned(sorted(found[name])) for name in names}


def _thinned(points: Curve) -> Curve:
    """At most `MOST_POINTS` of them, evenly, with the last."""
    every = -(-len(points) // MOST_POINTS)
    return [*points[: -1 : max(every, 1)], points[-1]]


def _figure(name: str, points: Curve) -> str:
    steps, values = [step for step, _ in points], [value for _, value in points]
    low, high = min(values), max(values)
    across = (_WIDTH - 2 * _MARGIN) / (max(steps) - min(steps) or 1)
    up = (_HEIGHT - 2 * _MARGIN) / (high - low or 1)
    drawn = " ".join(
        f"{_MARGIN + (step - steps[0]) * across:.1f},{_HEIGHT - _MARGIN - (value - low) * up:.1f}"
        for step, value in points
    )
    said = f"{name}: {values[0]:.4g} at step {steps[0]}, {values[-1]:.4g} at step {steps[-1]}"
    return (
        f'<figure><svg role="img" aria-label="{_text(said)}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}"><polyline fill="none" stroke="currentColor" '
        f'stroke-width="1.5" points="{drawn}"/></svg>'
        f"<figcaption>{_text(said)}; from {low:.4g} to {high:.4g}</figcaption></figure>"
    )


def _lineage(model: VerifiedModel | None) -> str:
    if model is None:
        return "<p>It has no attested model yet, so nothing is said of its lineage.</p>"
    table = model.coverage
    if len(table.corpora) * len(table.groups) > MOST_CELLS:
        return "<p>The lineage table is too large to show here: see govray verify.</p>"
    head = "".join(f'<th scope="col">{_text(each)}</th>' for each in table.groups)
    rows = "".join(
        f'<tr><th scope="row">{_text(corpus)}</th>'
        + "".join(f"<td>{_cell(model, corpus, group)}</td>" for group in table.groups)
        + "</tr>"
        for corpus in table.corpora
    )
    return (
        f"<table><caption>Tokens that updated each layer group, as the ledger counted them. "
        f"Signed by {_text(model.signer)}: {_text(model.digest)}</caption>"
        f'<thead><tr><th scope="col">corpus</th>{head}</tr></thead><tbody>{rows}</tbody></table>'
    )


def _cell(model: VerifiedModel, corpus: str, group: str) -> str:
    cell = model.coverage[corpus, group]
    if cell.tokens:
        return f"{cell.tokens:,}"
    return "through others" if cell.indirect else "–"


def _text(text: str) -> str:
    return escape(printable(text))
