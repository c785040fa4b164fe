"""Search recipes: what a module of ``searchers/`` offers, and how it is found.

A recipe is a Python file with two functions:

* ``preview(file) -> Preview``: what the search will cost; it must run without Ray.
* ``recipe(file, concurrent) -> Recipe``: what Ray Tune needs. ``concurrent`` trials run at once.

The names grid, random, bayesian, hyperband, asha and pbt mean ``searchers/<name>.py``. The one in
the working directory goes before the one that came with govray. A recipe is the user's code, as the
entrypoint is; it runs in the driver.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import govray
from govray.errors import UsageError
from govray.tune.dry_run import Preview
from govray.tune.search_config import SearchFile

if TYPE_CHECKING:
    from ray.tune import TuneConfig

METRIC = "objective"
"""The field of a result that Ray Tune minimizes."""

TIME = "step"
"""The field of a result that says how far a trial is: steps done."""

INVALID = "invalid"
"""The field of a result that says why a trial's hyperparameters cannot be run."""


@dataclass(frozen=True)
class Recipe:
    """What Ray Tune needs for a search.

    Attributes:
        param_space: For `ray.tune.Tuner`; empty if a search algorithm draws.
        tune_config: Metric, searcher, scheduler, number of trials. A scheduler may have
            ``reasons``: trial id to why it was last paused or stopped.
        commit_at: Steps at which a trial may take over another's state, and so keep a commit.
        repeats: Whether the scheduler of a resumed search gets all reports of its past trials
            again. If not, it gets only the last of each.
    """

    param_space: dict[str, Any]
    tune_config: TuneConfig
    commit_at: tuple[int, ...] = ()
    repeats: bool = True


@dataclass(frozen=True)
class Searcher:
    """The two functions of a recipe; see the module."""

    preview: Callable[[SearchFile], Preview]
    recipe: Callable[[SearchFile, int], Recipe]


def load_searcher(searcher: str) -> Searcher:
    path = _find(searcher)
    spec = importlib.util.spec_from_file_location(f"govray_searcher_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError("not a Python file", where=str(path), do="Name a .py file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(
            f"the recipe does not load: {type(error).__name__}: {error}", where=str(path)
        ) from error
    for name in ("preview", "recipe"):
        if not callable(getattr(module, name, None)):
            raise UsageError(
                f"the recipe has no function {name}", where=str(path), do="See searchers/random.py"
            )
    found = cast(Any, module)
    return Searcher(found.preview, found.recipe)


def _find(searcher: str) -> Path:
    if searcher.endswith(".py"):
        places = [Path(searcher)]
    else:
        package = Path(govray.__file__).parent
        folders = (Path.cwd(), package / "deployment", package.parent)
        places = [folder / "searchers" / f"{searcher}.py" for folder in folders]
    for place in places:
        if place.is_file():
            return place
    raise UsageError(
        f"no recipe {searcher!r}",
        where="search.searcher",
        do="Name grid, random, bayesian, hyperband, asha or pbt, or the path of a .py file",
    )
