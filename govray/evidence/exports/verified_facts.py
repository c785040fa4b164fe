"""What a verified model's records state, read once, for all formats.

Every value comes from a document whose signature and digest the verifier checked. So an export says
no more than those do. A field that no record states is None here, and each format leaves it out or
calls it unknown.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from govray.governance.attestation import model_folder
from govray.governance.attestation.coverage import Coverage
from govray.governance.attestation.model_attestation import Attestation, GroupTaint
from govray.governance.attestation.model_folder import Bundle
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import PublicKey
from govray.governance.policy.corpus_description import CorpusDescription
from govray.governance.policy.credential import Credential, Period
from govray.governance.record.gates import Gate
from govray.governance.verify.verifier import VerifiedModel

UNKNOWN = "unknown"
"""What a required field says where no record states it."""

PRODUCER = "https://govray.dev/"

LEVELS = ("declared", "exclusion counted", "replay identical", "removed")
"""The words of the levels of exclusion, from 0."""


@dataclass(frozen=True)
class FileFacts:
    """A file of the model folder that verified, and the SHA-256 of its bytes in hex."""

    name: str
    sha256: str

    @property
    def weights(self) -> bool:
        return self.name.endswith(".safetensors")


@dataclass(frozen=True)
class CorpusFacts:
    """One corpus that the policy admitted.

    Attributes:
        credential: What its issuer signed.
        digest: Of the credential's statement.
        coverage: What the ledger counted, by layer group; empty if no step read the corpus.
        tokens: Loss targets that steps read of it, by whatever route.
        levels: Layer group → level of exclusion, of the groups that no route reaches.
        closed: Layer group → the half-open ranges of steps in which a phase kept it out.
    """

    credential: Credential
    digest: str
    coverage: tuple[Coverage, ...]
    tokens: int
    levels: Mapping[str, int]
    closed: Mapping[str, tuple[tuple[int, int], ...]]

    @property
    def name(self) -> str:
        return self.credential.corpus

    @property
    def described(self) -> CorpusDescription:
        return self.credential.described

    @property
    def period(self) -> Period | None:
        """From the first instant of the first month that it was collected in, up to the last's."""
        stated = self.described.collected
        if stated is None:
            return None
        year, month = map(int, stated.last.split("-"))
        after = f"{year + month // 12:04}-{month % 12 + 1:02}"
        return Period(from_=f"{stated.first}-01T00:00:00Z", until=f"{after}-01T00:00:00Z")

    @property
    def personal_data(self) -> str:
        """What the issuer knows of it."""
        return self.described.personal_data or UNKNOWN

    @property
    def reached(self) -> tuple[str, ...]:
        """The layer groups that its own gradient updated, as the ledger counted."""
        return tuple(row.group for row in self.coverage)

    @property
    def records(self) -> int:
        """Distinct records of the layer group that got the most: no more than steps read."""
        return max((row.records for row in self.coverage), default=0)

    @property
    def groups_by_level(self) -> dict[int, tuple[str, ...]]:
        """Level of exclusion → the layer groups that have it, from the lowest level."""
        return {
            level: tuple(group for group, held in self.levels.items() if held == level)
            for level in sorted(set(self.levels.values()))
        }


@dataclass(frozen=True)
class VerifiedFacts:
    """What verified of one model folder.

    Attributes:
        digest: Of the attestation's statement, ``sha256:`` and hex.
        envelope: The attestation's own, with a signature by each of ``keys`` and no other.
        keys: The operator's that signed, as the trust root has them.
        files: All verified files, sorted by name, the attestation's own among them.
        depth: How much was read of the records: ``summary``, ``sample`` or ``full``.
        corpora: The admitted corpora, sorted by name.
        gates: Which of them the run left out or sent elsewhere, from which step on.
        witnesses: Second parties that replayed the whole run, by the names that the root gives.
    """

    attestation: Attestation
    digest: str
    envelope: Envelope
    keys: tuple[PublicKey, ...]
    files: tuple[FileFacts, ...]
    config: Mapping[str, canonical_json.JSON]
    signer: str
    trust_root: str
    policy: str
    assurance: str
    depth: str
    corpora: tuple[CorpusFacts, ...]
    gates: tuple[Gate, ...]
    witnesses: tuple[str, ...]

    @classmethod
    def of(cls, model: VerifiedModel) -> Self:
        """The facts of a model that has just verified; its folder is read once more."""
        attestation = model.attestation
        folder = Bundle(model.path)
        digests = {each.name: each.sha256 for each in model.subjects}
        config = folder.read(
            model_folder.CONFIG,
            limit=model_folder.MAX_ENVELOPE,
            digest=digests[model_folder.CONFIG],
        )
        for name in folder.names():
            if name.startswith(f"{model_folder.GOVERNANCE}/"):
                digests[name] = f"sha256:{folder.sha256(name)}"
                # The manifest may be pinned by its payload, which its envelope's bytes are not.
                pinned = attestation.files.get(name, digests[name])
                by_payload = (
                    name == model_folder.MANIFEST and attestation.manifest_pinned_by_payload
                )
                if digests[name] != pinned and not by_payload:
                    raise model_folder.changed(name)
        keys = _keys(model)
        data = folder.read(
            model_folder.ATTESTATION,
            limit=model_folder.MAX_ENVELOPE,
            digest=digests[model_folder.ATTESTATION],
        )
        parsed = canonical_json.parse(config, where=model_folder.CONFIG)
        return cls(
            attestation=attestation,
            digest=model.digest,
            envelope=_envelope(model, keys, data),
            keys=keys,
            files=tuple(
                FileFacts(name, digest.removeprefix("sha256:"))
                for name, digest in sorted(digests.items())
            ),
            config=parsed if isinstance(parsed, dict) else {},
            signer=model.signer,
            trust_root=f"{model.trust_root.root.name} v{model.trust_root.root.version}",
            policy=str(model.policy.document),
            assurance=model.assurance_level,
            depth=model.depth,
            corpora=_corpora(model),
            gates=model.gates,
            witnesses=tuple(sorted({each.authority.name for each in model.replay_checks})),
        )

    @property
    def name(self) -> str:
        """The run's id, which is the model's name: no record has another."""
        return self.attestation.run.id

    @property
    def date(self) -> str:
        """The last time that the attestation states: the run's end, or an adapter's removal."""
        removals = (each.removed for each in self.attestation.removals)
        return max([self.attestation.run.finished, *removals])

    @property
    def hex(self) -> str:
        """The attestation's digest without its prefix."""
        return self.digest.removeprefix("sha256:")

    @property
    def trained(self) -> tuple[CorpusFacts, ...]:
        """The corpora of which steps read anything."""
        return tuple(each for each in self.corpora if each.coverage)

    @property
    def groups(self) -> tuple[str, ...]:
        """The layer groups of the base model in order, then the adapters'."""
        return tuple(each.group for each in self.attestation.taint)

    @cached_property
    def taint(self) -> Mapping[str, GroupTaint]:
        """Layer group → what reached it directly and by any path."""
        return {each.group: each for each in self.attestation.taint}

    @property
    def entrypoint(self) -> str | None:
        """The class that builds the model, if the configuration names one."""
        found = self.config.get("entrypoint")
        return found if isinstance(found, str) else None

    @property
    def hyperparameters(self) -> Mapping[str, canonical_json.JSON]:
        """What that class was given; empty if the configuration states nothing."""
        found = self.config.get("hyperparameters")
        return found if isinstance(found, dict) else {}

    def uuid(self, purpose: str) -> str:
        """A UUID that follows from the attestation and ``purpose`` alone (RFC 9562, version 5)."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{PRODUCER}exports/{self.hex}/{purpose}"))


def _keys(model: VerifiedModel) -> tuple[PublicKey, ...]:
    return tuple(
        key
        for authority in model.trust_root.authorities
        if authority.name == model.signer
        for key in authority.keys
        if key.keyid in model.keyids
    )


def _envelope(model: VerifiedModel, keys: Sequence[PublicKey], data: bytes) -> Envelope:
    """The attestation's, if ``data`` is still what the verifier read: no digest covers its file."""
    envelope = Envelope.parse(data, where=model_folder.ATTESTATION)
    if (
        canonical_json.sha256(envelope.payload) != model.digest
        or len(envelope.signatures) != len(keys)
        or envelope.signed_by(keys) != model.keyids
    ):
        raise model_folder.changed(model_folder.ATTESTATION)
    return envelope


def _corpora(model: VerifiedModel) -> tuple[CorpusFacts, ...]:
    tokens: Counter[str] = Counter()
    for leaf in model.ledger.steps:
        tokens.update({corpus: use.targets for corpus, use in leaf.corpora.items()})
    names = [each.corpus for each in model.attestation.corpora]
    return tuple(_corpus(model, name, tokens[name]) for name in names)


def _corpus(model: VerifiedModel, name: str, tokens: int) -> CorpusFacts:
    attestation = model.attestation
    verified = model.credentials[name]
    return CorpusFacts(
        credential=verified.document,
        digest=verified.digest,
        coverage=tuple(row for row in attestation.coverage if row.corpus == name),
        tokens=tokens,
        levels=attestation.levels.get(name, {}),
        closed=(attestation.phase_exclusions or {}).get(name, {}),
    )
