"""A search file for tests that never run it."""

from __future__ import annotations

from typing import Any

from govray.tune.search_config import SearchFile, parse_search

EXPERIMENT: dict[str, Any] = {
    "name": "tiny",
    "hyperparameters": {"context": 32, "width": 16},
    "data": {
        "corpora": "data/corpora",
        "rows_per_step": {"everything": 4, "upper_half": {"rows": 1, "every": 3}},
    },
    "governance": {"policy": "p.dsse.json", "trust_root": "root.json"},
    "max_steps": 900,
}
SEARCH: dict[str, Any] = {"space": {"optimizer.lr": {"log": [1e-4, 1e-2]}}, "max_trials": 10}

FILE: dict[str, Any] = EXPERIMENT | {
    "max_steps": 90,
    "search": {
        "space": {
            "optimizer.lr": {"log": [1e-4, 1e-2]},
            "hyperparameters.width": {"choice": [16, 32]},
            "data.rows_per_step.upper_half": {"int": [1, 64]},
        },
        "max_trials": 8,
        "memorization": {"statistic": "min_k_plus_plus", "unit": "nats", "tau": 0.5},
        "stop": [
            {"no_improvement": 5},
            {"threshold": {"below": 1.0}},
            {"divergence": 3},
            {"memorization": 2},
            {"rule": "here:it"},
        ],
    },
}
"""Every key of the section, and each kind of rule."""


def search_value(**search: Any) -> dict[str, Any]:
    """The value of a file: 900 steps, ten trials, one in three goes on; ``search`` changes it."""
    return EXPERIMENT | {"search": SEARCH | {"divisor": 3} | search}


def search_file(**search: Any) -> SearchFile:
    return parse_search(search_value(**search), where="tiny.yaml")
