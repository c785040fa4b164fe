"""What lies in a run's folder, what of it is deleted, and what pins keep.

Three things are never deleted: the newest whole commit, a commit in flight, and a folder with a
manifest that is not whole. The last is left for a person to inspect. A deletion removes the
manifest first, so an interrupted one leaves nothing that loads.

What is pinned stays (`govray.train.checkpoint.pins`). What commits share beside them stays while
one names it: a pinned, held or damaged one too.

Rank 0 applies the rules after each of its commits. For a run without a driver,
`govray checkpoint gc` does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from govray.errors import GovrayError, InfrastructureFailed, UsageError
from govray.governance.formats import canonical_json
from govray.storage.place import Place
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.holds import read_holds
from govray.train.checkpoint.pins import folder_name, locked, read_pins, write_pins
from govray.train.checkpoint.retention import DEFAULT, Commit, Rules, kept
from govray.train.checkpoint.storage import OBJECTS, storage_of
from govray.train.state.carried_governance import STATE, stated
from govray.train.state.snapshot import committed_folders


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """What a run has stored.

    Attributes:
        commits: The whole ones, newest first. Their bytes were not hashed.
        places: Of these, and of the leftovers: name → folder.
        damaged: Folder → why it is not whole. Left for a person to inspect.
        leftovers: Folders that nothing loads → bytes: interrupted writes and deletions, and commits
            that were put aside.
        rules: The run's, from the newest commit.
        named: Commit → the objects that it names.
    """

    commits: tuple[Commit, ...]
    places: Mapping[str, commit_folder.Folder]
    damaged: Mapping[str, str]
    leftovers: Mapping[str, int]
    rules: Rules
    named: Mapping[str, Collection[str]] = field(default_factory=dict)

    def unnamed(self, objects: Mapping[str, int], gone: Collection[str] = ()) -> dict[str, int]:
        """The objects that no commit names, apart from the commits ``gone``: name → bytes.

        None while a commit is damaged: nobody knows what that names.

        Args:
            objects: What commits share beside them, listed before the inventory was taken. A
                commit that was published in between then has its own in ``named``.
        """
        if self.damaged:
            return {}
        held = {
            each for commit, names in self.named.items() if commit not in gone for each in names
        }
        return {name: size for name, size in objects.items() if name not in held}


def inventory(run_folder: Place) -> Inventory:
    """List what a run has stored. Reads manifests and each commit's ``state.json``, no tensors."""
    if not run_folder.is_dir():
        raise UsageError("no such run folder", where=str(run_folder))
    storage = storage_of(run_folder)
    leftovers = storage.leftovers()
    places = {name: folder for name, (folder, _) in leftovers.items()}
    commits: list[Commit] = []
    damaged: dict[str, str] = {}
    rules: Rules | None = None
    named: dict[str, Collection[str]] = {}
    for step, folder in storage.commits():
        try:
            if commit_folder.committed_at(folder) is None:
                continue  # a leftover
            committed = commit_folder.open_commit(folder)
            state: Any = canonical_json.parse_canonical(committed.files[STATE])
            loss, own = state.get("loss"), Rules(**state["keep"])
            judged = state.get("validation", {})
            value = judged.get("value") if judged.get("step") == step else None
            names = stated(state, folder).objects
        except InfrastructureFailed:
            raise
        except (GovrayError, KeyError, TypeError, AttributeError) as error:
            damaged[folder.name] = str(error) or type(error).__name__
            continue
        rules = rules or own
        named[folder.name] = frozenset(names)
        places[folder.name] = folder
        commits.append(
            Commit(
                name=folder.name,
                step=step,
                loss=loss,
                value=value,
                size=committed.size,
                digest=committed.digest,
            )
        )
    return Inventory(
        commits=tuple(commits),
        places=places,
        damaged=damaged,
        leftovers={name: size for name, (_, size) in leftovers.items()},
        rules=rules or DEFAULT,
        named=named,
    )


def surplus(
    run_folder: Place, found: Inventory, rules: Rules | None = None, floor: int | None = None
) -> tuple[Commit, ...]:
    """The commits that no rule, pin or hold keeps. ``rules`` are the run's unless given.
    The newest commit of step ``floor`` or before stays as if it were pinned."""
    if read_holds(run_folder):
        return ()
    pins = set(read_pins(run_folder))
    below = [commit for commit in found.commits if floor is not None and commit.step <= floor]
    pins |= {commit.name for commit in below[:1]}  # newest first
    stay = kept(found.commits, rules or found.rules, pins)
    return tuple(commit for commit in found.commits if commit.name not in stay)


def apply(run_folder: Place, rules: Rules, *, floor: int | None = None) -> tuple[str, ...]:
    """Delete the commits that the rules don't keep, manifest first; ``floor`` as in `surplus`.

    Returns:
        The names of what was deleted.

    Raises:
        Malformed: ``pins.json`` or ``holds.json`` is not readable. Nothing was deleted.
    """
    with locked(run_folder):
        found = inventory(run_folder)
        gone = tuple(each.name for each in surplus(run_folder, found, rules, floor))
        for name in gone:
            commit_folder.remove(found.places[name])
    return gone


def sweep(run_folder: Place) -> tuple[str, ...]:
    """Delete what nothing loads or names, unless a case holds the run. Only without a driver.

    A driver's next commit names objects that no commit names yet, so a run with one keeps all.

    Returns:
        The names of what was deleted.
    """
    with locked(run_folder):
        if read_holds(run_folder):
            return ()
        storage = storage_of(run_folder)
        objects = storage.objects()
        for name in (found := inventory(run_folder)).leftovers:
            commit_folder.remove(found.places[name])
        for name in (unnamed := found.unnamed(objects)):
            storage.remove_object(name)
    return (*found.leftovers, *(f"{OBJECTS}/{name}" for name in unnamed))


def pin(run_folder: Place, name: str, reason: str) -> None:
    """Keep a commit against the rules. A later pin of the same name replaces the reason."""
    with locked(run_folder):
        if not any(
            folder.name == name and commit_folder.committed_at(folder) is not None
            for _, folder in committed_folders(run_folder)
        ):
            raise UsageError("no such commit to pin", where=str(run_folder / name))
        write_pins(run_folder, read_pins(run_folder) | {name: reason})


def pin_ahead(run_folder: Place, steps: Iterable[int], reason: str) -> None:
    """Keep the commits of these steps. Called before the run begins."""
    with locked(run_folder):
        write_pins(run_folder, read_pins(run_folder) | {folder_name(s): reason for s in steps})


def pin_start(start_folder: Path, reason: str) -> None:
    """Pin the commit that a run's initial weights lie in, if they lie in one."""
    for folder in (start_folder, *start_folder.parents):
        if folder.name.startswith("checkpoint_") and (folder / commit_folder.MANIFEST).is_file():
            try:
                pin(folder.parent, folder.name, reason)
            except OSError as error:
                raise UsageError(
                    f"the weights lie in a checkpoint that could not be pinned: {error.strerror}",
                    where=str(folder),
                    do="Copy them to a folder of their own, and start from that",
                ) from error
            return
