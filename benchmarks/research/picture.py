"""Memorization against loss, as SVG without a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WIDTH, HEIGHT, LEFT, BELOW, LEGEND = 760, 460, 64, 52, 190


def picture(points: Mapping[str, Mapping[str, Any]], sides: Sequence[Sequence[str]]) -> str:
    """Each point with the intervals of both figures; the lower left is best.

    Arms of the first side are discs, those of the second squares, all others rings.
    """
    figures = {name: (each["loss"]["domain"], each["exposure"]) for name, each in points.items()}
    scales = [_Scale([own[axis] for own in figures.values()]) for axis in (0, 1)]
    shown = dict.fromkeys(each["arm"] for each in points.values())
    grouped = [[arm for arm in side if arm in shown] for side in sides]
    grouped.append([arm for arm in shown if not any(arm in side for side in sides)])
    arms = {
        arm: (kind, n / len(side))
        for kind, side in enumerate(grouped)
        for n, arm in enumerate(side)
    }
    right = WIDTH - LEGEND

    def x(value: float) -> float:
        return LEFT + (right - LEFT) * scales[0](value)

    def y(value: float) -> float:
        return (HEIGHT - BELOW) * (1 - scales[1](value)) + 8

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        ' font-family="sans-serif" font-size="13">',
        "<title>Exposure of private records against loss of held-out text, by arm</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<path d="M{LEFT} 8V{HEIGHT - BELOW + 8}H{right}" fill="none" stroke="#556"/>',
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
        "loss of held-out text of the domain, nats a byte</text>",
        f'<text transform="translate(16 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
        "exposure of planted records, bits</text>",
    ]
    for axis, place in enumerate(scales):
        for value in place.ticks:
            at = f'x="{x(value):.1f}" y="{HEIGHT - BELOW + 24}" text-anchor="middle"'
            if axis:
                at = f'x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end"'
            lines.append(f"<text {at}>{value:.3g}</text>")
    for name, (loss, bits) in figures.items():
        own = arms[points[name]["arm"]]
        spans = f"M{x(loss[1]):.1f} {y(bits[0]):.1f}H{x(loss[2]):.1f}"
        spans += f"M{x(loss[0]):.1f} {y(bits[1]):.1f}V{y(bits[2]):.1f}"
        lines += [
            f'<path d="{spans}" stroke="{_colour(own[1])}" fill="none" opacity="0.4"/>',
            f"<g><title>{name}</title>{_mark(x(loss[0]), y(bits[0]), *own)}</g>",
        ]
    for line, (arm, own) in enumerate(arms.items()):
        top = 20 + 20 * line + 10 * own[0]
        lines.append(_mark(right + 20, top, *own))
        lines.append(f'<text x="{right + 32}" y="{top + 4}">{arm.replace("_", " ")}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _mark(x: float, y: float, kind: int, turn: float) -> str:
    style = f'fill="{"white" if kind > 1 else _colour(turn)}" stroke="{_colour(turn)}"'
    if kind == 1:
        return f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" {style}/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" {style} stroke-width="2"/>'


def _colour(turn: float) -> str:
    return f"hsl({360 * turn:.0f} 75% 38%)"


class _Scale:
    """Value → place in 0 to 1, for triples of median, smallest and largest."""

    def __init__(self, triples: list[list[float]]) -> None:
        values = [value for each in triples for value in each] or [0.0, 1.0]
        spare = 0.05 * (max(values) - min(values)) or 0.5
        self.low, self.high = min(values) - spare, max(values) + spare
        step = (max(values) - min(values)) / 4
        self.ticks = [min(values) + step * tick for tick in range(5 if step else 1)]

    def __call__(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)
