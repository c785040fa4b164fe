"""``govray keys``: make a key pair, or print the public half of a key wherever it is.

The private key is written once, readable by its owner alone. It is never written into a git working
tree: a committed key is public for ever.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from govray.cli import signing_key, user_files
from govray.cli.output import PasswordFile, field, line, report
from govray.errors import UsageError

if TYPE_CHECKING:
    from govray.governance.formats.keys import LocalSigner

Algorithm: TypeAlias = Literal["ed25519", "ecdsa-p256"]

app = typer.Typer(help="Make signing keys, and print public ones.")


@app.command()
def new(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Where the private key goes.")],
    algorithm: Annotated[
        Algorithm,
        typer.Option(help="Use ecdsa-p256 if a hardware module lacks Ed25519."),
    ] = "ed25519",
    allow_git: Annotated[
        bool, typer.Option("--allow-git", help="Allow a path inside a git working tree.")
    ] = False,
    password_file: PasswordFile = None,
    encrypt: Annotated[
        bool, typer.Option("--encrypt", help="Ask for a password, and encrypt with it.")
    ] = False,
) -> None:
    """Write a private key to PATH (mode 0600) and its public key to PATH.pub.

    With --password-file or --encrypt the private key is encrypted (PKCS #8).
    """
    if not allow_git:
        check_outside_git(path)
    password = signing_key.new_password(password_file) if password_file or encrypt else None
    signer = make(path, algorithm, password)
    public_path = public_beside(path)
    report(
        {
            "privateKey": str(path),
            "publicKey": str(public_path),
            "algorithm": algorithm,
            "keyid": signer.public_key.keyid,
        }
    )
    line(f"New {algorithm} key {signer.public_key.keyid}")
    mode = "mode 0600, encrypted" if password else "mode 0600"
    field("private", f"{path} ({mode}; keep it, back it up, share it with nobody)")
    field("public", f"{public_path} (goes into trust roots)")


def make(
    path: Path, algorithm: Algorithm = "ed25519", password: bytes | None = None
) -> LocalSigner:
    """Write a new private key, and its public key beside it. A file that is there stays."""
    from govray.governance.formats.keys import LocalSigner

    signer = LocalSigner.generate(algorithm)
    user_files.make_folder(path.parent, mode=0o700)
    # The private key first: if the public file cannot be written, its content
    # is still derivable; the other way round a stale .pub would remain.
    user_files.write(path, signer.to_pem(password), mode=0o600, replace=False)
    user_files.write(public_beside(path), signer.public_key.to_pem())
    return signer


def public_beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.pub")


def check_outside_git(path: Path) -> None:
    """Raise `UsageError` for a key that would lie in a git working tree."""
    tree = _working_tree(path)
    if tree is not None:
        raise UsageError(
            f"this lies inside the git working tree {tree}",
            where=str(path),
            do="Keep keys outside of repositories, for example in ~/.config/govray. "
            "govray keys new --allow-git overrides this.",
        )


@app.command()
def public(
    reference: Annotated[
        str,
        typer.Argument(metavar="KEY", help="A PEM file, env:NAME, pkcs11:URI or command:PROGRAM."),
    ],
    password_file: PasswordFile = None,
) -> None:
    """Print the public key of KEY, for trust roots. A module or a command signs a line first.

    So what is printed belongs to a key that can sign.
    """
    from govray.governance.formats.keys import sign_with

    signer = signing_key.load(reference, password_file)
    key = signer.public_key
    key.verify(_TRIAL, sign_with(signer, _TRIAL))
    pem = key.to_pem().decode()
    report({"publicKey": pem, "algorithm": key.algorithm, "keyid": key.keyid})
    for each in pem.splitlines():
        line(each)


# No document begins like this, so the signature is of no use to anybody.
_TRIAL = b"govray keys public: a trial signature over nothing\n"


def _working_tree(path: Path) -> Path | None:
    folder = path.resolve().parent
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), None)
