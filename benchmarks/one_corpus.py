"""The smallest signed deployment that a run or a reader accepts: one corpus, one authority.

The keys are made for one run of a benchmark. The corpus is random printable text, the same for the
same size. Its policy lets it update everything.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from govray.data.corpus import Built, build, unsigned_credential
from govray.governance.formats.document import format_time
from govray.governance.formats.keys import LocalSigner
from govray.governance.policy.credential import Period
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.trust.authority import Authority, Scope, TrustRoot

CORPUS = "random-text"
_AUTHORITY = "benchmark"
_DAYS = timedelta(days=2)
_RECORD_BYTES = 1 << 14
_POLICY = """
schema: govray.dev/depth-policy/v1
name: everything
version: 1
valid: {from: 2020-01-01, until: 2099-01-01}
on_expiry: stop
profiles:
  everything: {layers: all}
rules:
  - {name: open, match: {license_category: [permissive]}, profile: everything}
"""


@dataclass(frozen=True)
class OneCorpus:
    """Where everything is.

    Attributes:
        corpora: Folder of corpora.
        built: The corpus, as `build` left it.
        policy: Signed depth policy.
        root: Signed trust root.
        key: The operator's private key.
        signer: The same, loaded; it signs everything here.
        at: The reference time.
    """

    corpora: Path
    built: Built
    policy: Path
    root: Path
    key: Path
    signer: LocalSigner
    at: datetime

    @classmethod
    def deploy(cls, folder: Path, size: int) -> OneCorpus:
        """Write and sign all of it.

        Args:
            folder: New or empty.
            size: Bytes of the corpus, about.
        """
        at = datetime.now(UTC).replace(microsecond=0)
        signer = LocalSigner.generate()
        folder.mkdir(parents=True, exist_ok=True)
        root, policy, key = (folder / name for name in ("root.json", "policy.json", "key.pem"))
        root.write_bytes(_trust_root(signer, at).seal([signer]))
        policy.write_bytes(read_policy(_POLICY).seal([signer]))
        key.touch(mode=0o600)
        key.write_bytes(signer.to_pem())
        built = build(folder / "corpora", CORPUS, records(size))
        valid = Period(from_=format_time(at - _DAYS), until=format_time(at + _DAYS))
        credential = unsigned_credential(
            built, license="MIT", issuer=_AUTHORITY, sensitivity="public", valid=valid
        )
        (built.folder / "credential.dsse.json").write_bytes(credential.seal([signer]))
        return cls(folder / "corpora", built, policy, root, key, signer, at)


def records(size: int) -> Iterator[tuple[str, bytes]]:
    """Records of random letters, ``size`` bytes in all. Equal sizes give equal records."""
    draw = random.Random(0)  # noqa: S311 — filler text, not secrets
    letters = bytes(97 + byte % 26 for byte in range(256))
    for number in range(max(1, size // _RECORD_BYTES)):
        yield f"{number:07d}.txt", draw.randbytes(_RECORD_BYTES).translate(letters)


def _trust_root(signer: LocalSigner, at: datetime) -> TrustRoot:
    expires = format_time(at + _DAYS)
    scope = Scope(
        corpus="*",
        license_categories=("permissive",),
        jurisdictions=("*",),
        max_sensitivity="public",
    )

    def authority(name: str, role: str) -> Authority:
        return Authority.model_validate(
            {
                "name": name,
                "role": role,
                "keys": (signer.public_key,),
                "threshold": 1,
                "expires": expires,
                "scope": (scope,) if role == "credential" else None,
            }
        )

    return TrustRoot(
        name=_AUTHORITY,
        version=1,
        expires=expires,
        keys=(signer.public_key,),
        threshold=1,
        authorities=(
            authority(_AUTHORITY, "credential"),
            authority("policy", "policy"),
            authority("operator", "operator"),
        ),
    )
