"""The picture of the rooms: ``python docs/draw_rooms.py`` writes ``docs/rooms.svg``.

Rows and arrows come from `tests/test_layering.py`, whose table is compared with the imports. A room
stands one row above the highest that it imports. What a room reaches by way of another is not drawn
again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDTH, ROW, BOX = 760, 84, (150, 44)


def rows(rooms: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """The rooms by height, lowest row first."""
    height: dict[str, int] = {}
    while len(height) < len(rooms):
        for room in sorted(set(rooms) - set(height)):
            if rooms[room] <= set(height):
                height[room] = max((height[below] + 1 for below in rooms[room]), default=0)
    return [
        sorted(room for room in rooms if height[room] == row)
        for row in range(max(height.values()) + 1)
    ]


def direct(rooms: Mapping[str, frozenset[str]]) -> list[tuple[str, str]]:
    """The arrows that no other room's arrows imply."""

    def reached(room: str) -> set[str]:
        return {each for below in rooms[room] for each in {below} | reached(below)}

    return sorted(
        (room, below)
        for room, others in rooms.items()
        for below in others
        if not any(below in reached(each) for each in others - {below})
    )


def picture(rooms: Mapping[str, frozenset[str]]) -> str:
    """The SVG of rooms and arrows, top row first."""
    levels = rows(rooms)
    middle: dict[str, tuple[float, float]] = {}
    for row, names in enumerate(reversed(levels)):
        for place, name in enumerate(names):
            middle[name] = (WIDTH * (place + 1) / (len(names) + 1), ROW * (row + 0.5))
    half = BOX[1] / 2
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {ROW * len(levels)}"'
        ' role="img" font-family="sans-serif" font-size="16">',
        "<title>The nine rooms, and which may import which</title>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8"'
        ' markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z" fill="#556"/></marker></defs>',
    ]
    for room, below in direct(rooms):
        (x, y), (to, under) = middle[room], middle[below]
        lines.append(
            f'<path d="M{x:.0f} {y + half:.0f} {to:.0f} {under - half:.0f}" stroke="#556"'
            ' fill="none" marker-end="url(#head)"/>'
        )
    for name, (x, y) in sorted(middle.items()):
        lines.append(
            f'<rect x="{x - BOX[0] / 2:.0f}" y="{y - half:.0f}" width="{BOX[0]}"'
            f' height="{BOX[1]}" rx="6" fill="#eef2f8" stroke="#556"/>'
            f'<text x="{x:.0f}" y="{y + 6:.0f}" text-anchor="middle">{name}</text>'
        )
    return "\n".join([*lines, "</svg>\n"])


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from tests.test_layering import NINE

    (ROOT / "docs" / "rooms.svg").write_text(picture(NINE))
