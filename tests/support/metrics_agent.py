"""Stands in for Ray's metrics agent, where a test runs without Ray."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from govray.train.watching import metrics
from govray.train.watching.metrics import DECLARED, PREFIX, TAGS

Series = dict[tuple[str, ...], float]


class Agent:
    """Takes what a process sets, as Ray's agent does: counters are summed, gauges replaced."""

    def __init__(self) -> None:
        self.series: dict[str, Series] = defaultdict(dict)
        self.fixed: dict[str, str] = {}
        self.calls = 0

    def text(self) -> str:
        """The newest run's series as an agent of Ray's exposes them."""
        lines = []
        for each in DECLARED:
            lines.append(f"# TYPE {PREFIX}{each.name} {'counter' if each.counts else 'gauge'}")
            for own, value in self.series[each.name].items():
                tags = {**self.fixed, "SessionName": "s"} | ({each.tag: own[0]} if own else {})
                labels = ",".join(f'{key}="{of}"' for key, of in tags.items())
                lines.append(f"{PREFIX}{each.name}{{{labels}}} {value}")
        return "\n".join([*lines, ""])

    def made(self, counts: bool) -> Any:
        agent = self

        class Metric:
            def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
                assert description
                self.name, self.keys, self.fixed = name, tag_keys, dict[str, str]()

            def set_default_tags(self, tags: dict[str, str]) -> None:
                self.fixed = agent.fixed = tags

            def _put(self, value: float, tags: dict[str, str] | None, before: float) -> None:
                agent.calls += 1
                given = self.fixed | (tags or {})
                assert set(given) == set(self.keys)
                own = tuple(given[key] for key in self.keys if key not in TAGS)
                agent.series[self.name][own] = value + before * agent.series[self.name].get(own, 0)

            def set(self, value: float, tags: dict[str, str] | None = None) -> None:
                assert not counts
                self._put(value, tags, 0)

            def inc(self, value: float, tags: dict[str, str] | None = None) -> None:
                assert counts
                assert value > 0  # Ray refuses others
                self._put(value, tags, 1)

        return Metric


def metrics_agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    """What runs of this process tell, from here on."""
    found = Agent()
    monkeypatch.setattr(metrics.ray_metrics, "Gauge", found.made(False))
    monkeypatch.setattr(metrics.ray_metrics, "Counter", found.made(True))
    return found
