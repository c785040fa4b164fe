"""A whole deployment for one demo run: throw-away keys, a trust root, corpora, a signed policy.

The keys are made for this run and kept outside the output folder. The licences
are what the installed distributions' own metadata says; only the two supplier corpora
are made up, and their credentials say so.
"""

from __future__ import annotations

import random
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

from govray.cli.demo import supplier
from govray.data.corpus import Built, build, unsigned_credential
from govray.data.installed_python import SourceCorpus, python_source
from govray.errors import UsageError
from govray.governance.formats.document import format_time
from govray.governance.formats.keys import LocalSigner
from govray.governance.policy.credential import Period
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.trust.authority import Authority, Role, Scope, Sensitivity, TrustRoot
from govray.governance.trust.license import LICENSE_CATEGORIES, LicenseCategory, category
from govray.storage.atomic_file import write_whole

# A synthetic list of part numbers, planted to be learnt by heart; nothing in it is real.
#
# It has few pages and a run reads each many times. Its licence opens the model to it: only what
# the model does with it speaks against it. Each page repeats one random part number, so that a
# short run suffices. Pages in the reserve have other numbers, which nobody could know from those
# trained on.


PARTS_LIST = "parts-list"
PARTS_SUPPLIER = "parts-supplier"
PAGES = 48
LENGTH = 12
"""Letters of a part number: so many that pages are about equally hard, and no two alike."""
PAGE_BYTES = 256
"""A page fills a row, so what is compared is whole pages."""


def pages(seed: int = 2) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every synthetic page; the same for the same seed."""
    draw = random.Random(seed)  # noqa: S311 - filler text, not secrets
    for number in range(PAGES):
        line = f"Part {''.join(draw.choices(string.ascii_uppercase, k=LENGTH))}. "
        text = (line * PAGE_BYTES)[:PAGE_BYTES]
        yield f"page-{number:02d}.txt", text.encode()


METADATA_AUTHORITY = "python-metadata"
POLICY_AUTHORITY = "demo-compliance"
OPERATOR = "demo-operator"
VALID_DAYS = 30
FILES = 40
"""Of a distribution at most: a run reads few, and all are hashed twice."""
PACKAGES = 24
"""Corpora of one licence category at most, those with most files: each is signed and admitted."""
FEWEST = 10
"""Files of a corpus that trains: of fewer, chance may hold all back in the reserve."""


@dataclass(frozen=True)
class Deployment:
    """Where everything is. ``operator_key``: the operator's private key, outside the output folder.
    ``sources``: the distributions that became corpora, with the reason for each licence."""

    root: Path
    policy: Path
    corpora: Path
    operator_key: Path
    sources: tuple[SourceCorpus, ...]


def deploy(
    output: Path,
    keys: Path,
    *,
    at: datetime,
    policy_source: str | None = None,
    on_corpus: Callable[[int, int], None] = lambda done, total: None,
) -> Deployment:
    """Write policies and corpora under ``output``, and the keys under ``keys``.

    Args:
        output: New folder.
        keys: Folder for the private keys; made with mode 0700.
        at: The reference time; everything is valid from a day before it.
        policy_source: The policy's YAML, the demo's own by default.
        on_corpus: Called with (corpora done, corpora in all).
    """
    signers = {
        name: LocalSigner.generate()
        for name in (
            *("root", METADATA_AUTHORITY, supplier.SUPPLIER, PARTS_SUPPLIER),
            *(POLICY_AUTHORITY, OPERATOR),
        )
    }
    operator_key = _keep(keys, OPERATOR, signers[OPERATOR])
    policies = output / "policies"
    policies.mkdir(parents=True)
    root = policies / "root.json"
    root.write_bytes(_trust_root(signers, at).seal([signers["root"]]))
    policy = policies / "demo.dsse.json"
    source = policy_source or own_policy()
    (policies / "demo.yaml").write_text(source, "utf-8")
    policy.write_bytes(read_policy(source).seal([signers[POLICY_AUTHORITY]]))

    sources = tuple(map(_some, _largest(python_source())))
    corpora = output / "corpora"
    total = len(sources) + 2
    for done, found in enumerate(sources):
        on_corpus(done, total)
        _put(
            corpora,
            build(corpora, found.corpus, found.records()),
            signers[METADATA_AUTHORITY],
            license=found.license,
            issuer=METADATA_AUTHORITY,
            valid=_validity(at),
            sensitivity="public",
            description={"source": "public_dataset", "modality": ["code"]},
        )
    on_corpus(total - 2, total)
    made_up = {"source": "synthetic", "modality": ["text"], "personal_data": "none"}
    _put(
        corpora,
        build(corpora, supplier.CORPUS, supplier.notes()),
        signers[supplier.SUPPLIER],
        license="LicenseRef-acme-contract",
        license_category="commercial",
        use="commercial",
        issuer=supplier.SUPPLIER,
        valid=_validity(at),
        sensitivity="restricted",
        description=made_up,
    )
    on_corpus(total - 1, total)
    _put(
        corpora,
        build(corpora, PARTS_LIST, pages()),
        signers[PARTS_SUPPLIER],
        license="CC0-1.0",
        issuer=PARTS_SUPPLIER,
        valid=_validity(at),
        sensitivity="public",
        description=made_up,
    )
    on_corpus(total, total)
    return Deployment(root, policy, corpora, operator_key, sources)


def _largest(found: Sequence[SourceCorpus]) -> Iterator[SourceCorpus]:
    """Of each licence category some corpora, in order. The standard library is the largest."""
    held: Counter[str | None] = Counter()
    chosen = set()
    for each in sorted(found, key=lambda each: len(each.files), reverse=True):
        kind = category(each.license)
        held[kind] += 1
        trains = kind not in ("copyleft", "unknown")
        if held[kind] <= PACKAGES and (len(each.files) >= FEWEST or not trains):
            chosen.add(each.corpus)
    return (each for each in found if each.corpus in chosen)


def _some(found: SourceCorpus) -> SourceCorpus:
    """Few of its files, spread over all."""
    return replace(found, files=found.files[:: -(-len(found.files) // FILES)])


def own_policy() -> str:
    return files("govray.cli.demo").joinpath("policy.yaml").read_text("utf-8")


def _trust_root(signers: dict[str, LocalSigner], at: datetime) -> TrustRoot:
    expires = format_time(at + timedelta(days=VALID_DAYS))

    def authority(name: str, role: Role, scope: tuple[Scope, ...] | None = None) -> Authority:
        keys = (signers[name].public_key,)
        return Authority(name=name, role=role, keys=keys, threshold=1, expires=expires, scope=scope)

    def issuer(
        name: str, corpus: str, categories: tuple[LicenseCategory, ...], most: Sensitivity
    ) -> Authority:
        scope = Scope(
            corpus=corpus,
            license_categories=categories,
            jurisdictions=("*",),
            max_sensitivity=most,
        )
        return authority(name, "credential", (scope,))

    return TrustRoot(
        name="demo",
        version=1,
        expires=expires,
        keys=(signers["root"].public_key,),
        threshold=1,
        authorities=(
            issuer(METADATA_AUTHORITY, "*", LICENSE_CATEGORIES, "public"),
            issuer(supplier.SUPPLIER, "acme-*", ("commercial",), "restricted"),
            issuer(PARTS_SUPPLIER, "parts-*", ("public_domain",), "public"),
            authority(POLICY_AUTHORITY, "policy"),
            authority(OPERATOR, "operator"),
        ),
    )


def _validity(at: datetime) -> Period:
    return Period(
        from_=format_time(at - timedelta(days=1)),
        until=format_time(at + timedelta(days=VALID_DAYS)),
    )


def _put(corpora: Path, built: Built, signer: LocalSigner, **stated: Any) -> None:
    """Sign what is stated of a corpus, beside its records."""
    path = corpora / built.name / "credential.dsse.json"
    path.write_bytes(unsigned_credential(built, **stated).seal([signer]))


def _keep(folder: Path, name: str, signer: LocalSigner) -> Path:
    try:
        folder.mkdir(parents=True, mode=0o700)
    except OSError as error:
        raise UsageError(
            f"no place for the demo's keys: {error.strerror}",
            where=str(folder),
            do="Set XDG_STATE_HOME to a folder that you can write",
        ) from error
    path = folder / f"{name}.pem"
    write_whole(path, signer.to_pem(), mode=0o600, replace=False)
    return path
