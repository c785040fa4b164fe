"""A corpus of any number of records, built and prepared: what that takes.

Records are slices of the Python source that this machine has, a number before each, so no two are
equal. Building is `govray.data.corpus.build`; preparing admits, tokenizes by bytes, packs and signs
on two CPUs of Ray. Ray is there already when the clock starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import numpy

from benchmarks.one_corpus import CORPUS, OneCorpus
from benchmarks.sized_model import CONTEXT
from govray.data import corpus
from govray.data.admission import prepare
from govray.data.corpus import read_credentials, verify_credentials
from govray.data.tokenizer import ByteTokenizer
from govray.governance.formats.document import format_time, parse_time
from govray.governance.formats.keys import LocalSigner
from govray.governance.policy.credential import Period
from govray.governance.policy.depth_policy import verify_policy
from govray.governance.trust.trust_state import TrustState
from govray.train.driver.ray_cluster import ray_running

_TEXT = 1 << 26
_CORPORA = "sized-corpora"
_DAYS = timedelta(days=2)


def deploy_records(folder: Path, records: int, size: int) -> None:
    """What `build_corpus` and `prepare_corpus` find in ``folder``: records of ``size`` bytes."""
    made = OneCorpus.deploy(folder / "deployment", 1)
    (folder / "deployment" / "at").write_text(format_time(made.at))
    (folder / "records").write_text(f"{records} {size}")
    (folder / "text").write_bytes(_text())


def build_corpus(folder: Path) -> int:
    """Build a corpus and sign its credential; returns the records."""
    count, size = map(int, (folder / "records").read_text().split())
    text = (folder / "text").read_bytes()
    deployment = folder / "deployment"
    built = corpus.build(folder / _CORPORA, CORPUS, _records(text, count, size))
    at = parse_time((deployment / "at").read_text())
    signer = LocalSigner.from_pem((deployment / "key.pem").read_bytes())
    valid = Period(from_=format_time(at - _DAYS), until=format_time(at + _DAYS))
    unsigned = corpus.unsigned_credential(
        built, license="MIT", issuer="benchmark", sensitivity="public", valid=valid
    )
    (built.folder / corpus.CREDENTIAL_FILE).write_bytes(unsigned.seal([signer]))
    return count


def prepare_corpus(folder: Path) -> int:
    """Admit and pack it; returns the records."""
    return _prepare(folder, by_family=False)


def prepare_by_family(folder: Path) -> int:
    """The same with a reserve split by family; returns the records."""
    return _prepare(folder, by_family=True)


def _prepare(folder: Path, *, by_family: bool) -> int:
    deployment = folder / "deployment"
    at = parse_time((deployment / "at").read_text())
    trust = TrustState.load((deployment / "root.json").read_bytes(), at=at)
    corpora = folder / _CORPORA
    prepared = prepare(
        corpora,
        folder / ("prepared-by-family" if by_family else "prepared-corpus"),
        credentials=verify_credentials(corpora, read_credentials(corpora), trust, at=at),
        policy=verify_policy(trust, (deployment / "policy.json").read_bytes(), at=at).document,
        tokenizer=ByteTokenizer(),
        context=CONTEXT,
        reserve_share=0.02,
        salt=bytes(32),
        signer=lambda: LocalSigner.from_pem((deployment / "key.pem").read_bytes()),
        trust=trust,
        at=at,
        max_quarantined=0.0,
        by_family=by_family,
    )
    return prepared.manifest.records(CORPUS)


@contextmanager
def two_cpus_of_ray() -> Iterator[None]:
    """A cluster of this machine, with a worker that has run a task."""
    with ray_running(num_cpus=2):
        yield


def _records(text: bytes, count: int, size: int) -> Iterator[tuple[str, bytes]]:
    for number in range(count):
        turn, place = divmod(number * size, len(text) - size)
        start = (place + turn) % (len(text) - size)
        yield f"{number:09}", b"%d\n" % number + text[start : start + size]


def _text() -> bytes:
    """Python source that is installed here, some 64 MB or all of it."""
    found = bytearray()
    for path in sorted(Path(numpy.__file__).parent.parent.rglob("*.py")):
        found += path.read_bytes()
        if len(found) >= _TEXT:
            break
    return bytes(found)
