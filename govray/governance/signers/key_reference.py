"""Where a signing key is, in one word: every place that takes a key takes such a reference.

======================  ====================================================================
``operator.pem``        a private key's file, readable by its owner alone
``env:NAME``            a variable that holds the PEM itself, or the path of its file
``pkcs11:…``            a hardware module, by the URI of RFC 7512
``command:…``           a program that signs its standard input: a key service, Vault
======================  ====================================================================
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from govray.errors import UsageError
from govray.governance.formats.keys import (
    COMMAND,
    PKCS11,
    Signer,
    is_outside,
    load_signer,
    shown_reference,
)
from govray.governance.signers.command_signer import CommandSigner
from govray.governance.signers.pkcs11_reference import Pkcs11Reference
from govray.governance.signers.pkcs11_signer import Pkcs11Signer


def open_signer(
    reference: str,
    *,
    password: bytes | Callable[[], bytes] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Signer:
    """Return the signer that ``reference`` names.

    Args:
        reference: One of the four.
        password: Of an encrypted file; a function is called only if the key is encrypted.
        environment: Where variables are looked up; this process's environment by default.

    Raises:
        UsageError: Nothing is there, others can read it, or it holds no key that is accepted. No
            message holds a key or a PIN.
    """
    known = os.environ if environment is None else environment
    if is_outside(reference) and isinstance(password, bytes):
        raise UsageError(
            "a password is for a key's file, and this key is elsewhere",
            where=shown_reference(reference),
            do="Leave it out; a PIN's file is named by pin-source",
        )
    if reference.startswith(COMMAND):
        return CommandSigner.open(reference)
    if reference.startswith(PKCS11):
        where = shown_reference(reference)
        return Pkcs11Signer(Pkcs11Reference.parse(reference, known), where=where)
    return load_signer(reference, password=password, environment=known)
