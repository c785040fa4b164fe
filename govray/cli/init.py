"""``govray init DIR``: copy the deployment that people edit, with a first trust root if asked for.

The deployment lives once, in the source tree. An installed wheel carries it as
``govray/deployment`` (a build mapping in pyproject.toml); an editable install
finds the tree itself.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

import govray
from govray.cli import keys, signing_key, source_files, user_files
from govray.cli.output import agreed, field, line, report
from govray.errors import CouldNotCheck, UsageError

if TYPE_CHECKING:
    from govray.governance.formats.keys import Signer

PURPOSE = {
    "jobs": "entry points for ray job submit, with their experiments",
    "policies": "policy sources, signed envelopes, the trust root; never a private key",
    "deploy": "container file, Kubernetes chart, units of systemd, dashboards",
    "serve": "the HTTP application",
    "searchers": "search recipes",
    "cluster.yaml": "the Ray autoscaler's cluster",
}
# The build mapping lists the same; a test compares both with what a wheel holds.
PARTS = tuple(PURPOSE)

IGNORES = (".gitignore", ".rayignore")
"""Files that git and Ray read: what stays in the folder."""

PARTIES = ("root", "data-office", "compliance", "operator")
"""Those that sign. Each has a key of its own, also where one person has them all."""

KEYS = Path("~/govray-keys")

ROOT_SOURCE = """\
# This says who may sign what. One person has all keys here. For another's key, put its .pub file
# beside this file and name it, raise `version`, and sign again:
# govray sign policies/root.yaml --key KEY
schema: govray.dev/trust-root/v1
name: {name}
version: 1
expires: {until}
keys: [root.pem.pub]
threshold: 1
authorities:
  - name: data-office        # signs what each corpus is
    role: credential
    keys: [data-office.pem.pub]
    threshold: 1
    expires: {until}
    scope:
      - corpus: "*"
        license_categories: [public_domain, permissive, copyleft_limited, copyleft, commercial,
          unknown]
        jurisdictions: ["*"]
        max_sensitivity: restricted
  - {{name: compliance, role: policy, keys: [compliance.pem.pub], threshold: 1, expires: {until}}}
  - {{name: operator, role: operator, keys: [operator.pem.pub], threshold: 1, expires: {until}}}
"""


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    keys_in: Annotated[
        Path | None,
        typer.Option(
            "--keys",
            metavar="DIR",
            help="Sign as one person: make four keys in DIR, or take those that are there, and a "
            "trust root of them. Default: ask at the terminal.",
        ),
    ] = None,
) -> None:
    """Make a deployment's folder, for you to edit.

    Keep it in a repository of your own. With keys, it can sign at once. Without, each party
    makes a key, and the root's owner a root.
    """
    source = deployment()
    if directory.is_dir() and any(directory.iterdir()):
        raise UsageError(
            "the folder is not empty", where=str(directory), do="Name a new or an empty folder."
        )
    if directory.exists() and not directory.is_dir():
        raise UsageError("this is a file", where=str(directory), do="Name a new or empty folder.")
    question = f"Sign as one person here? Makes keys in {KEYS}, and policies/root.json"
    if keys_in is None and agreed(question):
        keys_in = KEYS
    held = OnePerson.in_folder(keys_in, outside=directory) if keys_in else None
    copied = copy(source, directory)
    root = held.make_root(directory) if held else None
    report({"directory": str(directory), "copied": copied, "trustRoot": root and str(root)})
    line(f"Deployment copied to {directory}")
    for name in copied:
        field(name, PURPOSE[name])
    if held:
        field("keys", f"{held.folder}: back them up, share them with nobody")
        field("root", f"{root}: says for a year that these keys may sign")
    key = str(held.folder / "compliance.pem") if held else "~/.config/govray/compliance.pem"
    line()
    line(f"Next  cd {quote(str(directory))}")
    line("      govray doctor" if held else f"      govray keys new {key}")
    line("      govray policy lint policies/licences.yaml")
    line(f"      govray sign policies/licences.yaml --key {quote(key) if held else key}")


@dataclass(frozen=True)
class OnePerson:
    """One person's keys for all parties. ``public``: party → what its ``.pub`` file holds."""

    folder: Path
    public: Mapping[str, bytes]
    root: Signer

    @classmethod
    def in_folder(cls, folder: Path, *, outside: Path) -> OnePerson:
        """The keys that are in ``folder``; those that are missing are made there."""
        folder = folder.expanduser().absolute()
        if folder.resolve().is_relative_to(outside.resolve()):
            raise UsageError(
                "keys would lie in the folder that jobs are sent from",
                where=str(folder),
                do=f"Name a folder outside of it, such as {KEYS}.",
            )
        held = {party: folder / f"{party}.pem" for party in PARTIES}
        for path in held.values():
            if not path.exists():
                keys.check_outside_git(path)
                keys.make(path)
        public = {party: user_files.read(keys.public_beside(path)) for party, path in held.items()}
        return cls(folder, public, signing_key.load(str(held["root"]), None))

    def make_root(self, directory: Path) -> Path:
        """Write a trust root of these keys into the deployment, signed; return where it is."""
        from govray.governance.formats.document import NAME

        policies = directory / "policies"
        for party, public in self.public.items():
            user_files.write(policies / f"{party}.pem.pub", public)
        name = directory.resolve().name
        name = name if re.match(NAME, name) else "my-house"
        source = policies / "root.yaml"
        user_files.write(source, ROOT_SOURCE.format(name=name, until=_in_a_year()).encode())
        root = source_files.read(source)
        user_files.write(root.output, root.document.seal([self.root]))
        return root.output


def _in_a_year() -> date:
    return datetime.now(UTC).date() + timedelta(365)


def deployment() -> Path:
    package = Path(govray.__file__).parent
    for folder in (package / "deployment", package.parent):
        # `jobs` tells a source tree from a site-packages folder.
        if (folder / "jobs").is_dir() and (folder / "cluster.yaml").is_file():
            return folder
    raise CouldNotCheck(
        "this installation carries no deployment to copy",
        where=str(package),
        do="Install the wheel, or the source tree with pip install -e.",
    )


def copy(source: Path, target: Path) -> list[str]:
    """Copy the parts that ``source`` has into the new or empty ``target``; return their names."""
    import yaml

    from govray.governance.submission.secret_files import ignore_file

    created = not target.exists()
    try:
        target.mkdir(parents=True, exist_ok=True)
        copied = []
        for name in PARTS:
            part = source / name
            if part.is_dir():
                shutil.copytree(part, target / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif part.is_file():
                shutil.copy2(part, target / name)
            else:
                continue
            copied.append(name)
        for name in IGNORES:
            (target / name).write_text(ignore_file())
        for each in (target / "jobs").glob("*.yaml"):
            # A relative path of a submitted job counts from Ray's temporary folder.
            runs = yaml.safe_dump({"storage_path": str(target.resolve() / "runs")}, width=10**6)
            each.write_text(each.read_text().replace("storage_path: runs\n", runs))
        valid = f"valid: {{from: {datetime.now(UTC).date()}, until: {_in_a_year()}}}"
        for each in (target / "policies").glob("*.yaml"):
            each.write_text(re.sub(r"(?m)^valid: .*", valid, each.read_text()))
    except BaseException:
        for name in PARTS:
            shutil.rmtree(target / name, ignore_errors=True)
        for name in (*PARTS, *IGNORES):
            (target / name).unlink(missing_ok=True)
        if created:
            shutil.rmtree(target, ignore_errors=True)
        raise
    return copied
