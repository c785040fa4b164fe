"""``govray init DIR``: copy the deployment that people edit.

The deployment lives once, in the source tree. An installed wheel carries it as
``govray/deployment`` (a build mapping in pyproject.toml); an editable install
finds the tree itself.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

import govray
from govray.cli.output import field, line, report
from govray.errors import CouldNotCheck, UsageError

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


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
) -> None:
    """Copy the deployment, for you to edit and keep in your own repository."""
    source = deployment()
    if directory.is_dir() and any(directory.iterdir()):
        raise UsageError(
            "the folder is not empty", where=str(directory), do="Name a new or an empty folder."
        )
    if directory.exists() and not directory.is_dir():
        raise UsageError("this is a file", where=str(directory), do="Name a new or empty folder.")
    copied = copy(source, directory)
    report({"directory": str(directory), "copied": copied})
    line(f"Deployment copied to {directory}")
    for name in copied:
        field(name, PURPOSE[name])
    line()
    line(f"Next  cd {quote(str(directory))}")
    line("      govray keys new ~/.config/govray/compliance.pem")
    line("      govray policy lint policies/licences.yaml")
    line("      govray sign policies/licences.yaml --key ~/.config/govray/compliance.pem")


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
    except BaseException:
        for name in PARTS:
            shutil.rmtree(target / name, ignore_errors=True)
        for name in (*PARTS, *IGNORES):
            (target / name).unlink(missing_ok=True)
        if created:
            shutil.rmtree(target, ignore_errors=True)
        raise
    return copied
