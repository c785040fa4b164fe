"""A signed model folder of any number of rows, and what attesting and verifying it takes.

Records and weights are made up: a model of one tensor, a corpus under commitments with a record for
every two rows. The rest is what a run leaves: manifest and files of records, plan, and a ledger
with a leaf a step.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from benchmarks.one_corpus import CORPUS, OneCorpus
from govray.data import records_file
from govray.data.corpus import Built, unsigned_credential
from govray.governance.attestation import model_folder
from govray.governance.attestation.environment import Environment
from govray.governance.attestation.execution import CodeFacts, Execution
from govray.governance.attestation.model_attestation import (
    LayerGroup,
    Reference,
    RunFacts,
    admitted_corpora,
    build,
)
from govray.governance.attestation.signing import UnsignedModel, sign_head
from govray.governance.formats import canonical_json, merkle
from govray.governance.formats.document import format_time, parse_time
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.record_columns import RecordColumns
from govray.governance.formats.statement import seal, self_subject
from govray.governance.policy import record_commitment
from govray.governance.policy.credential import (
    Credential,
    Period,
    verify_credential,
)
from govray.governance.policy.depth_policy import verify_policy
from govray.governance.record.batch_plan import BatchPlan, plan_streams
from govray.governance.record.ledger import CorpusUse, Leaf, Ledger
from govray.governance.record.plan_rows import read_ranges
from govray.governance.record.prepare_manifest import (
    Manifest,
    Part,
    PreparedCorpus,
    Reserve,
    TokenizerIdentity,
    shard_name,
    verify_manifest,
)
from govray.governance.record.row_counts import step_counts
from govray.governance.trust.trust_state import TrustState, Verified
from govray.governance.verify.trace import trace
from govray.governance.verify.verifier import VerifiedModel, verify
from govray.train.inputs.planning import local_order

CONTEXT, QUOTA = 511, 256
_PER_RECORD = 2
_PER_PART = 1 << 17
_SECRET = hashlib.sha256(b"the made-up corpus's secret").digest()
_ZERO = "sha256:" + "0" * 64
_GROUPS = [LayerGroup(group="embedding", parameters=("weight",))]


def prepare(folder: Path, rows: int) -> None:
    """Trust, policy, credential, manifest and ledger of a run that read about ``rows`` rows."""
    made = OneCorpus.deploy(folder / "deployment", 1)
    trust = TrustState.load(made.root.read_bytes(), at=made.at)
    policy = verify_policy(trust, made.policy.read_bytes(), at=made.at)
    count = max(1, rows // _PER_RECORD)
    reserve = Reserve(share=0.0, salt="00" * 16)
    found = merkle.BulkRoot()
    columns = []
    for start in range(0, count, _PER_PART):
        columns.append(_columns(start, min(start + _PER_PART, count)))
        found.add_hashes(columns[-1].entries.tobytes())
    root = "sha256:" + found.root().hex()
    built = Built(made.built.folder, CORPUS, root, count, 1, record_commitment.commitment(_SECRET))
    valid = Period(from_=format_time(made.at), until="2099-01-01T00:00:00Z")
    unsigned = unsigned_credential(
        built, license="MIT", issuer="benchmark", sensitivity="public", valid=valid
    )
    sealed = unsigned.seal([made.signer])
    credential = verify_credential(trust, sealed, at=made.at)
    manifest = _manifest(columns, reserve, credential)
    for part, each in zip(manifest.corpora[0].parts, columns, strict=True):
        path = folder / "deployment" / "prepared" / part.records_file
        path.parent.mkdir(parents=True, exist_ok=True)
        records_file.write(path, each)
    envelope = seal(manifest, [self_subject("manifest", manifest)], [made.signer])
    pinned = verify_manifest(trust, envelope, at=made.at)
    train_rows = manifest.train_rows(CORPUS)
    max_steps = -(-train_rows // QUOTA)
    _, routes = admitted_corpora(policy.document, {CORPUS: credential}, ["embedding"], max_steps)
    label = policy.document.decide(credential.document.credential_class).label
    plan = BatchPlan(
        seed=17,
        max_steps=max_steps,
        manifest=pinned.digest,
        context=CONTEXT,
        order=local_order(CONTEXT),
        streams=plan_streams(
            {CORPUS: (routes[CORPUS].digest, label)},
            {CORPUS: train_rows},
            rows_per_step={label: QUOTA},
        ),
    )
    steps = [
        {stream: (r.start, r.stop) for stream, r in plan.positions(step).items()}
        for step in range(plan.max_steps)
    ]
    leaves = tuple(
        Leaf(
            step=step,
            world_size=1,
            policy=policy.digest,
            plan=plan.digest,
            streams=streams,
            corpora={c: CorpusUse(rows=r, targets=t) for c, (r, t) in counts.items()},
        )
        for step, (streams, counts) in enumerate(
            zip(steps, step_counts(plan, manifest, steps), strict=True)
        )
    )
    given = {
        model_folder.POLICY: made.policy.read_bytes(),
        model_folder.CREDENTIALS: sealed + b"\n",
        model_folder.MANIFEST: envelope,
        model_folder.DELEGATIONS: b"",
        model_folder.LEDGER: Ledger("sized", leaves).data,
        model_folder.CONFIG: b"{}",
        model_folder.WEIGHTS: save({"weight": np.zeros(1, np.float32)}),
    }
    for name, data in given.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "deployment" / "plan.json").write_bytes(canonical_json.encode(plan.to_json()))
    (folder / "deployment" / "at").write_text(format_time(made.at))


def _columns(start: int, stop: int) -> RecordColumns:
    entries = b"".join(
        record_commitment.entry(_record(number), _SECRET) for number in range(start, stop)
    )
    numbers = np.arange(start, stop, dtype=np.int64)
    return RecordColumns(
        np.frombuffer(entries, np.uint8).reshape(-1, 32),
        700 + numbers * 37 % 647,
        np.zeros(stop - start, np.uint8),
    )


def _manifest(
    columns: list[RecordColumns], reserve: Reserve, credential: Verified[Credential]
) -> Manifest:
    parts = (
        Part.of(
            each,
            source=f"records-{number:05}.parquet",
            file=shard_name(credential.document, number),
            context=CONTEXT,
            rows_per_group=64,
            groups_digest=_ZERO,
            reserve_groups_digest=_ZERO,
        )
        for number, each in enumerate(columns)
    )
    return Manifest(
        tokenizer=TokenizerIdentity(name="bytes", digest=_ZERO, vocabulary=257, separator=256),
        context=CONTEXT,
        reserve=reserve,
        corpora=(PreparedCorpus.of(credential, parts),),
    )


def plan_all(folder: Path) -> int:
    """The batch plan as a driver makes it, and the rows of all steps as workers compute them.

    Returns how many rows.
    """
    deployment = folder / "deployment"
    at = parse_time((deployment / "at").read_text())
    trust = TrustState.load((deployment / "root.json").read_bytes(), at=at)
    manifest = verify_manifest(trust, (folder / model_folder.MANIFEST).read_bytes(), at=at)
    given = canonical_json.parse_canonical((deployment / "plan.json").read_bytes())
    known = BatchPlan.from_json(given, where="plan")
    [stream] = known.streams
    plan = BatchPlan(
        seed=known.seed,
        max_steps=known.max_steps,
        manifest=manifest.digest,
        context=CONTEXT,
        order=local_order(CONTEXT),
        streams=plan_streams(
            {CORPUS: (stream.id, stream.profile)},
            {CORPUS: manifest.document.train_rows(CORPUS)},
            rows_per_step={stream.profile: QUOTA},
        ),
    )
    assert plan.digest == known.digest
    ranges = (
        (step, positions.start, positions.stop)
        for step in range(plan.max_steps)
        for positions in plan.positions(step).values()
    )
    return sum(rows.size for _, _, rows in read_ranges(plan, stream.id, ranges))


def attest(folder: Path) -> int:
    """What `govray.train.attest.write_model` does but for copying weights; returns the rows."""
    deployment = folder / "deployment"
    at = (deployment / "at").read_text()
    signer = LocalSigner.from_pem((deployment / "key.pem").read_bytes())
    trust = TrustState.load((deployment / "root.json").read_bytes(), at=parse_time(at))
    governance = {
        name: (folder / name).read_bytes()
        for name in (
            model_folder.POLICY,
            model_folder.MANIFEST,
            model_folder.CREDENTIALS,
            model_folder.DELEGATIONS,
            model_folder.LEDGER,
        )
    }
    manifest = verify_manifest(trust, governance[model_folder.MANIFEST], at=parse_time(at))
    plan = BatchPlan.from_json(
        canonical_json.parse_canonical((deployment / "plan.json").read_bytes()), where="plan"
    )
    ledger = Ledger.read("sized", governance[model_folder.LEDGER])
    credential = governance[model_folder.CREDENTIALS].strip()
    claims = build(
        run=RunFacts(id="sized", name="sized", started=at, finished=at),
        policy=verify_policy(trust, governance[model_folder.POLICY], at=parse_time(at)),
        trust_root=Reference(name=trust.root.name, version=trust.root.version, digest=trust.digest),
        manifest=manifest,
        records=records_file.open_records(deployment / "prepared", manifest.document),
        plan=plan,
        credentials={CORPUS: verify_credential(trust, credential, at=parse_time(at))},
        groups=_GROUPS,
        ledger=ledger,
        adapter_tensors={},
        environment=Environment(
            python="3",
            platform="any",
            processor="any",
            device="cpu",
            packages={},
            code_digest=_ZERO,
            seeds={},
            threads=1,
            settings={},
        ),
        files={name: canonical_json.sha256(data) for name, data in governance.items()}
        | {model_folder.MANIFEST: manifest.digest},
    )
    subjects = {
        name: canonical_json.sha256((folder / name).read_bytes())
        for name in (model_folder.CONFIG, model_folder.WEIGHTS)
    }
    execution = Execution(
        code=CodeFacts(origin="submitted"),
        isolation="machine",
        attempts=1,
        commit=_ZERO,
        registered=at,
        attested=at,
    )
    found = UnsignedModel(claims=claims, subjects=subjects, commit=_ZERO)
    for name, data in (
        governance | dict(sign_head(found, execution, signer).signed([signer]))
    ).items():
        (folder / name).write_bytes(data)
    return _rows(ledger)


def verify_summary(folder: Path) -> int:
    """`govray verify` of the model folder alone; returns the rows."""
    return _rows(_verified(folder, read=False).ledger)


def verify_sample(folder: Path) -> int:
    """`govray verify --records … --sample 1e-4`; returns the rows."""
    return _rows(_verified(folder, sample=1e-4).ledger)


def verify_full(folder: Path) -> int:
    """`govray verify --records …`; returns the rows."""
    found = _verified(folder)
    assert found.depth == "full"
    return _rows(found.ledger)


def trace_one(folder: Path) -> int:
    """`govray trace` of the first record: verifies, then looks for it; returns the rows."""
    verified = _verified(folder)
    [found] = trace(verified, _record(0).hex(), {CORPUS: _SECRET})
    assert found.steps
    return _rows(verified.ledger)


def _record(number: int) -> bytes:
    """SHA-256 of a made-up record."""
    return hashlib.sha256(b"%d" % number).digest()


def _verified(folder: Path, *, read: bool = True, sample: float | None = None) -> VerifiedModel:
    deployment = folder / "deployment"
    return verify(
        folder,
        trust_root=(deployment / "root.json").read_bytes(),
        at=parse_time((deployment / "at").read_text()),
        max_rows=None,
        allow_uncovered=("deployment/*",),
        records=records_file.reader(deployment / "prepared") if read else None,
        sample=sample,
    )


def _rows(ledger: Ledger) -> int:
    return sum(stop - start for leaf in ledger.steps for start, stop in leaf.streams.values())
