"""What a submitted experiment file asks for, and who says so.

The schema of experiment files belongs to training, which the service does not import. The
application's maker gives it a function that knows the schema: `govray.tune.experiment_cost`.
Without one nothing can be submitted. Here are the bounds that hold before that function sees a
text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from govray.errors import CouldNotCheck, GovrayError
from govray.governance.submission.submission import WORD
from govray.governance.submission.yaml_overrides import (
    Value,
    below,
    overridden_text,
    read_mapping,
    written,
)
from govray.platform.service.http.problems import Problem, not_valid

LONGEST_FILE = 1 << 16
"""Characters of a file that is sent. Reading 16,000 lines of YAML takes seconds of a core."""

FILE = "experiment"
"""What errors call the file that was sent."""


class ExperimentFacts(Protocol):
    """What a file says of itself. `govray.tune.experiment_cost.ExperimentCost` has the words."""

    @property
    def kind(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def workers(self) -> int: ...

    @property
    def slots(self) -> int: ...

    @property
    def least(self) -> int | None: ...

    @property
    def gpus(self) -> float: ...

    @property
    def trials(self) -> int: ...

    @property
    def steps(self) -> int | None: ...

    @property
    def rows_per_step(self) -> float: ...

    @property
    def tokens(self) -> int | None: ...

    @property
    def policy(self) -> str: ...

    @property
    def labels(self) -> Sequence[str]: ...

    @property
    def own_code(self) -> bool: ...

    @property
    def pretrained(self) -> bool: ...

    @property
    def unknown(self) -> Sequence[str]: ...


Check = Callable[[str], ExperimentFacts]
"""Validates the text of a file. Raises `UsageError` or `Malformed`, which name line and field."""


def file_text(given: str | Mapping[str, Any], overrides: Sequence[str]) -> str:
    """The text of what was sent as text or as JSON, with the overrides."""
    size = len(given if isinstance(given, str) else json.dumps(given))
    if size > LONGEST_FILE:
        raise not_valid("body.file", f"{size} characters are more than {LONGEST_FILE}")
    text = given if isinstance(given, str) else written(given)
    try:
        read_mapping(text, name=FILE)
    except GovrayError as error:
        raise _told("body.file", error) from None
    try:
        changed = overridden_text(text, overrides, name=FILE)
    except GovrayError as error:
        raise _told("body.set", error) from None
    if len(changed) > LONGEST_FILE:
        raise not_valid("body.set", f"with them the file is longer than {LONGEST_FILE} characters")
    return changed


def facts(check: Check | None, text: str) -> ExperimentFacts:
    if check is None:
        raise CouldNotCheck(
            "this service does not know the schema of experiment files, so none can be submitted",
            do="Its operator starts it by `govray serve` or serve/app.py, which bring it",
        )
    try:
        return check(text)
    except CouldNotCheck:
        raise
    except GovrayError as error:
        raise _told("body.file", error) from None


def _told(field: str, error: GovrayError) -> Problem:
    what = f"{error.where}: {error.what}" if error.where else error.what
    return not_valid(field, what, error.do or "`govray schema experiment` lists the fields")


# How many workers a search may have at once, written into its file where the file is silent.
#
# A queue counts a search's slots before it starts, and the search obeys its file. So both read one
# number, and the record of the search has it.


def lacks_room(config: Mapping[str, Any]) -> bool:
    """Whether it is a search that states no limit.
    A file that is not as it should be lacks none: who validates it says what is wrong."""
    search, resources = config.get("search"), config.get("resources", {})
    return (
        isinstance(search, dict)
        and isinstance(resources, dict)
        and "max_concurrent_trials" not in search
        and "max_workers" not in resources
        and type(_workers(resources)) is int
    )


def with_room(config: Mapping[str, Any], slots: int) -> Value:
    """A search that `lacks_room`, with ``resources.max_workers``. One trial always has room."""
    most = max(slots, _workers(config.get("resources", {})))
    return below(config, {"resources": {"max_workers": most}})


def _workers(resources: Mapping[str, Any]) -> Any:
    """The most workers of one trial, as the file has it."""
    workers = resources.get("num_workers", 1)
    return workers[-1] if isinstance(workers, list) and workers else workers


def stated(config: Mapping[str, Any], name: str) -> Any:
    """The ``project``, ``pool`` or ``priority`` that a file states; None if it states none, or one
    that its schema refuses."""
    held = config if name == "project" else config.get("resources")
    value = held.get(name) if isinstance(held, Mapping) else None
    if name == "priority":
        return value
    return value if isinstance(value, str) and re.fullmatch(WORD, value) else None
