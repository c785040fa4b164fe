"""A complete simulated deployment with real keys, and model folders that verify.

``World.deploy`` writes the folder that a small run would leave, without torch: every signature,
digest, permutation and count is real, only the tensors are zeros. Each stage takes a hook, and
everything downstream is derived from what the hook returns and signed again by the operator: an
insider who controls the operator's key, the strongest attacker for the stage. What the hooks
cannot touch are the keys of others.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from govray.governance.attestation import model_attestation as attesting
from govray.governance.attestation import model_folder
from govray.governance.attestation.coverage import updated_adapters
from govray.governance.attestation.environment import Environment
from govray.governance.attestation.execution import CodeFacts, Execution
from govray.governance.attestation.model_attestation import Attestation, LayerGroup, Reference
from govray.governance.attestation.signing import UnsignedModel
from govray.governance.formats import canonical_json
from govray.governance.formats.document import Document
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.signed_note import sign_checkpoint
from govray.governance.formats.statement import Subject, read, seal, self_subject
from govray.governance.policy import record_commitment
from govray.governance.policy.corpus_routes import CorpusRoutes
from govray.governance.policy.credential import Credential, Period, Records
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.policy.route import Route
from govray.governance.record.batch_plan import BatchPlan, plan_streams, slice_rank
from govray.governance.record.gates import Gate, changed_routes, encode_gates
from govray.governance.record.ledger import (
    AnyLeaf,
    CorpusUse,
    GradientNorms,
    Leaf,
    Ledger,
    MeasuredPass,
)
from govray.governance.record.prepare_manifest import (
    Manifest,
    PreparedCorpus,
    Quarantined,
    Reserve,
    shard_name,
)
from govray.governance.record.row_order import RowOrder
from govray.governance.trust.authority import Authority, Delegation, Scope, TrustRoot
from govray.governance.trust.trust_state import TrustState, Verified
from govray.governance.verify.verifier import VerifiedModel, verify
from tests.support.manifests import TOKENIZER, RecordFiles, split
from tests.support.row_by_row import corpus_counts

D = TypeVar("D", bound=Document)
T = TypeVar("T")
Hook = Callable[[T], T]

STARTED = "2026-11-10T08:00:00Z"
FINISHED = "2026-11-10T09:00:00Z"
AT = datetime(2026, 11, 20, tzinfo=UTC)
FAR = "2030-01-01T00:00:00Z"
RUN = "run-7f3a"
DIGEST = canonical_json.sha256(b"stands for something that no test looks into")
EXECUTION = Execution(
    code=CodeFacts(origin="submitted"),
    isolation="machine",
    attempts=1,
    commit=DIGEST,
    registered=STARTED,
    attested=FINISHED,
)

POLICY = """
schema: govray.dev/depth-policy/v1
name: licences
version: 3
valid: {from: 2026-11-01, until: 2027-11-01}
on_expiry: stop
profiles:
  everything: {layers: all}
  upper_half: {layers: {"blocks[0.5:]": 1, final_norm: 0.3, head: 1}}
  removable: {layers: none, adapter: "{corpus}", rank: 2}
  nothing: {layers: none}
rules:
  - {name: open, match: {license_category: [permissive]}, profile: everything}
  - {name: weak-copyleft, match: {license_category: [copyleft_limited]}, profile: upper_half}
  - {name: contracts, match: {license_category: [commercial]}, profile: removable}
  - {name: strong-copyleft, match: {license_category: [copyleft]}, profile: nothing}
"""

LICENSES = {
    "acme": ("LicenseRef-acme", "commercial"),
    "alpha": ("MIT", "permissive"),
    "beta": ("Apache-2.0", "permissive"),
    "gamma": ("MPL-2.0", "copyleft_limited"),
}

GROUPS = (
    LayerGroup(group="embedding", parameters=("embedding.weight",)),
    LayerGroup(group="block.0", parameters=("blocks.0.weight", "blocks.0.bias")),
    LayerGroup(group="block.1", parameters=("blocks.1.weight", "blocks.1.bias")),
    LayerGroup(group="final_norm", parameters=("norm.weight",)),
    LayerGroup(group="head", parameters=("head.weight",)),
)

ENVIRONMENT = Environment(
    python="3.11.9",
    platform="linux-x86_64",
    processor="a processor, AVX2",
    device="cpu",
    packages={"torch": "2.13.0"},
    code_digest=DIGEST,
    seeds={"plan": 17},
    threads=1,
    settings={"torch.deterministicAlgorithms": "off"},
)

# Corpus → part → (record hash, tokens)
RecordLists = dict[str, list[list[tuple[str, int]]]]


def same(value: T) -> T:
    """The hook that changes nothing."""
    return value


def draw_records(
    corpora: Mapping[str, Sequence[int]], *, longest: int, seed: int = 7
) -> RecordLists:
    """Records with drawn lengths: corpus → records of each part."""
    generator = random.Random(seed)
    return {
        corpus: [
            [
                (hashlib.sha256(f"{corpus}/{k}/{i}".encode()).hexdigest(), length)
                for i in range(count)
                for length in [0 if i == 3 else generator.randrange(1, longest)]
            ]
            for k, count in enumerate(counts)
        ]
        for corpus, counts in sorted(corpora.items())
    }


def unchecked(kind: type[D], data: bytes, authority: Authority) -> Verified[D]:
    """What an envelope holds, whoever signed it."""
    sealed = read(kind, Envelope.parse(data))
    return Verified(sealed.document, sealed.digest, sealed.subjects, (authority,), frozenset())


def safetensors(names: Sequence[str]) -> bytes:
    """A safetensors file of one-element zero tensors."""
    header = {
        name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]}
        for i, name in enumerate(sorted(names))
    }
    text = json.dumps({"__metadata__": {"format": "pt"}} | header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(4 * len(header))


def secret_of(corpus: str) -> bytes:
    """What a corpus's records are committed under, unless a test says otherwise."""
    return hashlib.sha256(corpus.encode()).digest()


@dataclass
class Keys:
    """Everybody's keys. Suppliers sign with P-256, as an HSM would."""

    root: LocalSigner = field(default_factory=LocalSigner.generate)
    archive: LocalSigner = field(default_factory=lambda: LocalSigner.generate("ecdsa-p256"))
    acme: LocalSigner = field(default_factory=LocalSigner.generate)
    compliance: tuple[LocalSigner, LocalSigner] = field(
        default_factory=lambda: (LocalSigner.generate(), LocalSigner.generate())
    )
    operator: LocalSigner = field(default_factory=LocalSigner.generate)
    auditor: LocalSigner = field(default_factory=LocalSigner.generate)


class World:
    """One organisation: a root, a supplier archive that delegates to acme, compliance (two of
    two keys), an operator; a policy, four corpora and what a run needs."""

    context = 7
    reserve = Reserve(share=0.25, salt="5a" * 16)

    def __init__(
        self,
        *,
        corpora: Mapping[str, Sequence[int]] | None = None,
        longest: int = 12,
        steps: int = 6,
        quotas: Mapping[str, int] | None = None,
        context: int = 7,
        name: str = "example-org",
        secrets: Mapping[str, bytes] | None = None,
    ) -> None:
        self.name = name
        corpora = corpora or {"acme": (9,), "alpha": (10, 8), "beta": (12,), "gamma": (11,)}
        self.secrets = {name: secret_of(name) for name in corpora} | dict(secrets or {})
        self.keys = Keys()
        self.files = RecordFiles()  # of all that it deploys
        self.context = context
        self.steps = steps
        self.quotas = dict(quotas or {"everything": 3, "upper_half": 1, "removable": 1})
        self.records = draw_records(corpora, longest=longest)
        self.root = self.sign_root()
        self.delegations = [self.delegate()]
        self.policy_text = POLICY
        self.policy = read_policy(POLICY).seal(self.keys.compliance)
        self.credentials = {c: self.issue(c) for c in self.records}

    # Trust

    def authorities(self) -> tuple[Authority, ...]:
        """The root's authorities; ``acme-legal`` comes by delegation."""
        return (
            Authority(
                name="archive",
                role="credential",
                keys=(self.keys.archive.public_key,),
                threshold=1,
                expires=FAR,
                scope=(
                    Scope(
                        corpus="*",
                        license_categories=("permissive", "copyleft_limited", "commercial"),
                        jurisdictions=("*",),
                        max_sensitivity="restricted",
                    ),
                ),
            ),
            Authority(
                name="compliance",
                role="policy",
                keys=tuple(k.public_key for k in self.keys.compliance),
                threshold=2,
                expires=FAR,
                minimum_policy_versions={"licences": 2},
            ),
            Authority(
                name="operator",
                role="operator",
                keys=(self.keys.operator.public_key,),
                threshold=1,
                expires=FAR,
            ),
            Authority(
                name="auditor",
                role="witness",
                keys=(self.keys.auditor.public_key,),
                threshold=1,
                expires=FAR,
            ),
        )

    def sign_root(self, **changes: Any) -> bytes:
        """The trust root's envelope."""
        fields: dict[str, Any] = {
            "name": self.name,
            "version": 1,
            "expires": FAR,
            "keys": (self.keys.root.public_key,),
            "threshold": 1,
            "authorities": self.authorities(),
        }
        return TrustRoot(**fields | changes).seal([self.keys.root])

    def delegate(self) -> bytes:
        """The archive lets acme speak for its own commercial corpora."""
        acme = Authority(
            name="acme-legal",
            role="credential",
            keys=(self.keys.acme.public_key,),
            threshold=1,
            expires=FAR,
            scope=(
                Scope(
                    corpus="acme*",
                    license_categories=("commercial",),
                    jurisdictions=("DE",),
                    max_sensitivity="confidential",
                ),
            ),
        )
        return Delegation(delegator="archive", authority=acme).seal([self.keys.archive])

    @property
    def trust(self) -> TrustState:
        return TrustState.load(self.root, at=AT, delegations=self.delegations)

    @property
    def operator(self) -> Authority:
        return self.authorities()[2]

    # Data

    def issue(
        self,
        corpus: str,
        *,
        records: Sequence[Sequence[tuple[str, int]]] | None = None,
        signer: LocalSigner | None = None,
        **changes: Any,
    ) -> bytes:
        """A corpus's credential, by the authority in charge."""
        mine = corpus.startswith("acme")
        base = corpus if corpus in LICENSES else "alpha"
        license_, category = LICENSES[base]
        hashes = [h for part in records or self.records[corpus] for h, _ in part]
        entries = [self.entry(corpus, each) for each in hashes]
        fields: dict[str, Any] = {
            "schema_version": "v1",
            "corpus": corpus,
            "license": license_,
            "license_category": category,
            "use": "unspecified" if mine else "commercial",
            "jurisdiction": "DE",
            "sensitivity": "confidential" if mine else "public",
            "valid": Period(from_="2026-01-01T00:00:00Z", until="2027-01-01T00:00:00Z"),
            "issuer": "acme-legal" if mine else "archive",
            "records": Records(
                root=record_commitment.root(entries),
                count=len(entries),
                commitment=record_commitment.commitment(self.secrets[corpus]),
            ),
        }
        signer = signer or (self.keys.acme if mine else self.keys.archive)
        return Credential(**fields | changes).seal([signer])

    def prepare(
        self, records: RecordLists, credentials: Mapping[str, Verified[Credential]]
    ) -> Manifest:
        """The manifest that admission writes for these records."""
        return Manifest(
            tokenizer=TOKENIZER,
            context=self.context,
            reserve=self.reserve,
            corpora=tuple(
                self._prepare(corpus, parts, credentials[corpus])
                for corpus, parts in sorted(records.items())
            ),
            quarantine=(
                Quarantined(
                    corpus="delta", rule="strong-copyleft", reason="GPL-3.0-only", records=5
                ),
            ),
        )

    def entry(self, corpus: str, sha256: str) -> bytes:
        """What stands in the manifest for the record with this SHA-256."""
        return record_commitment.entry(bytes.fromhex(sha256), self.secrets[corpus])

    def _prepare(
        self, corpus: str, parts: list[list[tuple[str, int]]], credential: Verified[Credential]
    ) -> PreparedCorpus:
        made = [
            self.files.part(
                split(
                    [self.entry(corpus, sha256) for sha256, _ in part],
                    [tokens for _, tokens in part],
                    self.reserve,
                ),
                number=k,
                file=shard_name(credential.document, k),
                context=self.context,
            )
            for k, part in enumerate(parts)
        ]
        return PreparedCorpus.of(credential, made)

    # The run

    def deploy(
        self,
        folder: Path,
        *,
        policy: bytes | None = None,
        credentials: Mapping[str, bytes] | None = None,
        records: Hook[RecordLists] = same,
        manifest: Hook[Manifest] = same,
        plan: Hook[BatchPlan] = same,
        leaves: Hook[list[Leaf]] = same,
        norms: Hook[list[GradientNorms]] = same,
        all_leaves: Hook[list[AnyLeaf]] = same,
        untrained: Sequence[str] = (),
        gates: Sequence[Gate] = (),
        gates_data: Hook[bytes] = same,
        ledger_data: Hook[bytes] = same,
        attestation: Hook[Attestation] = same,
        operator: LocalSigner | None = None,
        run: str = RUN,
        **built: Any,
    ) -> Path:
        """Write the model folder of one run; each hook sees, and may change, its stage."""
        operator = operator or self.keys.operator
        policy = policy or self.policy
        envelopes = dict(sorted((self.credentials | dict(credentials or {})).items()))
        verified = {c: unchecked(Credential, e, self.operator) for c, e in envelopes.items()}
        ruled = unchecked(attesting.Policy, policy, self.operator)
        prepared = manifest(self.prepare(records(self.records), verified))
        sealed = seal(prepared, [self_subject("manifest", prepared)], [operator])
        # Not read back: a hook may have made a manifest that no reader accepts.
        digest = canonical_json.sha256(Envelope.parse(sealed).payload)
        pinned = Verified(prepared, digest, (), (self.operator,), frozenset())
        base = [g.group for g in GROUPS]
        _, routes = attesting.admitted_corpora(ruled.document, verified, base, self.steps)
        labels = {
            c: (routes[c].digest, ruled.document.decide(v.document.credential_class).label)
            for c, v in verified.items()
        }
        planned = plan(
            BatchPlan(
                seed=17,
                max_steps=self.steps,
                manifest=pinned.digest,
                context=self.context,
                order=RowOrder(block=1, window=1 << 20),
                streams=plan_streams(
                    labels,
                    {c: prepared.train_rows(c) for c in verified},
                    rows_per_step=self.quotas,
                ),
            )
        )
        steps = leaves(record(planned, prepared, ruled.digest, gates, routes.phased))
        measured = norms(measure(steps, planned, routes))
        ledger = Ledger(run, all_leaves(interleave(steps, measured)))
        updated = updated_adapters(ledger.steps, planned, routes.by_digest)
        adapters = sorted(updated | set(untrained))
        tensors = {a: (f"{a}.lora_A.weight", f"{a}.lora_B.weight") for a in adapters}
        model = {
            model_folder.CONFIG: b'{"entrypoint":"world:Model"}',
            model_folder.WEIGHTS: safetensors([p for g in GROUPS for p in g.parameters]),
        }
        for adapter in adapters:
            config, weights = model_folder.adapter_files(adapter)
            model |= {config: b'{"r":2}', weights: safetensors(tensors[adapter])}
        governance = {
            model_folder.POLICY: policy,
            model_folder.MANIFEST: sealed,
            model_folder.CREDENTIALS: b"".join(e + b"\n" for e in envelopes.values()),
            model_folder.DELEGATIONS: b"".join(d + b"\n" for d in self.delegations),
            model_folder.LEDGER: ledger_data(ledger.data),
        }
        if recorded := gates_data(encode_gates(gates)):
            governance[model_folder.GATES] = recorded
        root = read(TrustRoot, Envelope.parse(self.root))
        claims = attesting.build(
            **{
                "run": attesting.RunFacts(id=run, name="world", started=STARTED, finished=FINISHED),
                "policy": ruled,
                "trust_root": Reference(
                    name=self.name, version=root.document.version, digest=root.digest
                ),
                "manifest": pinned,
                "records": self.files.of(prepared),
                "plan": planned,
                "credentials": verified,
                "groups": GROUPS,
                "ledger": ledger,
                "adapter_tensors": tensors,
                "environment": ENVIRONMENT,
                "files": {n: canonical_json.sha256(d) for n, d in governance.items()},
            }
            | built
        )
        governance[model_folder.CHECKPOINT] = checkpoint = sign_ledger(ledger, operator)
        document = attestation(Attestation.of(claims, EXECUTION, canonical_json.sha256(checkpoint)))
        for name, data in (model | governance).items():
            write(folder / name, data)
        self.attest(folder, document, operator=operator)
        return folder

    def unsigned(self, folder: Path) -> UnsignedModel:
        """What a reader without the key would have handed over of a folder that was deployed."""
        data = (folder / model_folder.ATTESTATION).read_bytes()
        attested = unchecked(Attestation, data, self.operator)
        fields = {name: getattr(attested.document, name) for name in attesting.Claims.model_fields}
        fields["files"] = {n: d for n, d in fields["files"].items() if n != model_folder.CHECKPOINT}
        subjects = {each.name: each.sha256 for each in attested.subjects}
        claims = attesting.Claims(**fields)
        return UnsignedModel(claims=claims, subjects=subjects, commit=EXECUTION.commit)

    def verify(self, folder: Path, **given: Any) -> VerifiedModel:
        """The model of a folder, verified with all that this organisation has: its records, too."""
        return verify(
            folder, **{"trust_root": self.root, "at": AT, "records": self.files.read} | given
        )

    def attest(
        self,
        folder: Path,
        document: Attestation,
        *,
        subjects: Hook[list[Subject]] = same,
        operator: LocalSigner | None = None,
    ) -> None:
        """Sign ``document`` over the model files that the folder holds now."""
        names = [
            n
            for n in model_folder.Bundle(folder).names()
            if not n.startswith(model_folder.GOVERNANCE)
        ]
        named = [Subject.of(n, canonical_json.sha256((folder / n).read_bytes())) for n in names]
        signed = seal(document, subjects(named), [operator or self.keys.operator])
        write(folder / model_folder.ATTESTATION, signed)


def sign_ledger(ledger: Ledger, signer: LocalSigner) -> bytes:
    """The ledger's checkpoint."""
    return sign_checkpoint(ledger.origin, ledger.size, ledger.root, signer)


def record(
    plan: BatchPlan,
    manifest: Manifest,
    policy: str,
    gates: Sequence[Gate] = (),
    phased: Mapping[str, Route] = MappingProxyType({}),
) -> list[Leaf]:
    """The leaves of a run that followed its plan, phases and gates, on two ranks."""
    leaves = []
    for step in range(plan.max_steps):
        streams = {i: (r.start, r.stop) for i, r in plan.positions(step).items()}
        counts = corpus_counts(plan, manifest, streams)
        changed = changed_routes(gates, {}, 0, step, phased)
        leaves.append(
            Leaf(
                branch=0,
                step=step,
                world_size=2,
                policy=policy,
                plan=plan.digest,
                streams=streams,
                corpora={
                    c: CorpusUse(rows=r, targets=t, route=route.digest if route else None)
                    for c, (r, t) in counts.items()
                    if (route := changed.get(c)) or c not in changed
                },
            )
        )
    return leaves


def measure(
    steps: Sequence[Leaf], plan: BatchPlan, routes: CorpusRoutes, *, every: int = 2
) -> list[GradientNorms]:
    """Made-up gradient norms of every other step, whose ranks put at most two rows through the
    model together."""
    found = []
    for leaf in steps:
        if leaf.step % every or not leaf.corpora:
            continue
        rows: dict[tuple[int, str], list[str]] = {}
        for stream, (start, stop) in sorted(leaf.streams.items()):
            for position, corpus, _ in plan.read(stream, range(start, stop)):
                if corpus not in leaf.corpora:
                    continue
                rank = slice_rank(stop - start, position - start, leaf.world_size)
                rows.setdefault((rank, stream), []).append(corpus)
        found.append(
            GradientNorms(
                branch=leaf.branch,
                step=leaf.step,
                passes=tuple(
                    MeasuredPass(
                        rank=rank, stream=stream, corpora=dict(Counter(corpora[i : i + 2]))
                    )
                    for (rank, stream), corpora in sorted(rows.items())
                    for i in range(0, len(corpora), 2)
                ),
                squared_norms={
                    corpus: {
                        group: random.Random(f"{leaf.step} {corpus} {group}").random()
                        for group in routes.taken(corpus, use.route).groups
                    }
                    for corpus, use in leaf.corpora.items()
                },
            )
        )
    return found


def interleave(steps: Sequence[Leaf], norms: Sequence[GradientNorms]) -> list[AnyLeaf]:
    """Every leaf, each followed by the gradient norms of its step."""
    return [
        each
        for leaf in steps
        for each in (leaf, *(n for n in norms if (n.branch, n.step) == (leaf.branch, leaf.step)))
    ]


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
