"""The verifier's seventeen steps: number, name, what has to hold, and what it needs.

The one list: the verifier and the check of an envelope alone import it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One step.
    ``needs``: what the step reads besides the attestation's envelope; None if nothing."""

    number: int
    name: str
    text: str
    needs: str | None = None


TRUST_ROOT = Step(
    1,
    "trust root",
    "given by the caller or pinned earlier, never from inside the folder; a file that is "
    "given does not go behind the pinned one; it and the folder's delegations are valid.",
)
SIGNATURE = Step(
    2,
    "signature",
    "a threshold of keys of an operator authority signed the attestation's bytes, and every "
    "signature in the envelope is one of theirs.",
)
STATEMENT = Step(
    3,
    "statement",
    "the payload is a provenance-coverage attestation, strict and canonical; the run ended "
    "before the reference time, and adapters were removed between the two; the trust root is "
    "the one it names, or a later one.",
)
FILES = Step(
    4,
    "files",
    "every subject and every governance file is present with its digest; there is no other "
    "file that a loader may load or execute, unless the caller allows it. Further files are "
    "reported.",
    needs="the model's files",
)
POLICY = Step(
    5,
    "policy",
    "signed, the attested one, not older than the trust root allows, and in force when the "
    "run started and when it ended.",
    needs="the signed policy in the model folder",
)
CREDENTIALS = Step(
    6,
    "credentials",
    "signed within their issuers' scope, valid when the run started and when it ended, or "
    "until a gate left the corpus out; exactly those attested.",
    needs="the credentials in the model folder",
)
MANIFEST = Step(
    7,
    "manifest",
    "signed by an operator, and pinned by its statement or its bytes; it counts as many records "
    "as the credentials. The records, where they are at hand, have the credentials' Merkle roots, "
    "and splits, tokens and rows follow from them. Where the trust root names a beacon, the "
    "reserve's salt follows from its first pulse after the credentials.",
    needs="the prepare manifest in the model folder",
)
ROUTES = Step(
    8,
    "routes",
    "corpora, rules, routes and domains follow from policy and credentials; the tensors in "
    "the files are those of the layer groups and adapters, and every byte is a tensor's.",
    needs="policy, credentials and the model's files",
)
PLAN = Step(
    9,
    "plan",
    "its streams follow from routes and manifest; a search that chose the model depends on "
    "every corpus that the plan reads.",
    needs="the prepare manifest in the model folder",
)
LEDGER = Step(
    10,
    "ledger",
    "every step has the plan's ranges and counts, less the corpora that a gate left out from "
    "that step on, if the policy gates, and with the route of the policy's fallback for those "
    "that a gate sent there, and of the phase for those whose profile has phases; loss targets "
    "of conversations are those of their rows if the records were read, else at most as many as "
    "these can have; gradient norms are of the plan's rows on every rank, and only where the "
    "routes permit a gradient; entropy profiles are those that the policy asks for, gates for "
    "memorization and branches follow from them, and so does what the attestation says of them; "
    "size and root are those of the note, which a key that signed the attestation signed too; "
    "the lines that came from the run's ancestors are theirs by root, and end where each handed "
    "over; heads that were signed elsewhere for the same run are of its first leaves.",
    needs="the ledger and its checkpoint in the model folder",
)
COVERAGE = Step(
    11,
    "coverage",
    "coverage with its gradient-norm shares, taint, levels and the steps in which phases close "
    "layer groups follow from the ledger, the routes and the evidence; a replay is the "
    "operator's own, unless a witness of the trust root signed its outcome.",
    needs="the ledger in the model folder",
)
ASSURANCE = Step(
    12,
    "assurance",
    "no assurance level that nothing here shows; the disclaimer word for word.",
)
REVOCATIONS = Step(
    13,
    "revocations",
    "the lists, read before step 2, are their issuers', and as fresh as the trust root asks; "
    "nothing that the run used was revoked before it ended, unless a gate left it out since; "
    "nobody whose delegation was revoked signed any of it. What was revoked later is stated. "
    "The attestation itself is not revoked.",
    needs="revocation lists",
)
REPLAY_CHECKS = Step(
    14,
    "replay checks",
    "each one in the folder or given is by a witness of the trust root who does not share a "
    "key with the signer, about these files, this attestation, run and ledger.",
    needs="the replay checks in the model folder",
)

TIMESTAMP = Step(
    15,
    "timestamp",
    "each timestamp in the folder is of an authority of the trust root, over the attestation's "
    "envelope; its time is not before the run ended, nor after the reference time.",
    needs="the timestamps in the model folder",
)
WITNESSES = Step(
    16,
    "witnesses",
    "a cosigned head in the folder is the ledger's; each cosignature by a witness of the trust "
    "root verifies, from a time between the run's start and the reference time. As many as its "
    "policy asks for make the model witnessed.",
    needs="the cosigned head in the model folder",
)
EXECUTION = Step(
    17,
    "execution",
    "the run was registered before it started, and attested between its end and the reference "
    "time; the policy that it was submitted under and what it was set up with are those it had. "
    "Who submitted what, and in which isolation, is the operator's word.",
)

STEPS = (
    TRUST_ROOT,
    SIGNATURE,
    STATEMENT,
    FILES,
    POLICY,
    CREDENTIALS,
    MANIFEST,
    ROUTES,
    PLAN,
    LEDGER,
    COVERAGE,
    ASSURANCE,
    REVOCATIONS,
    REPLAY_CHECKS,
    TIMESTAMP,
    WITNESSES,
    EXECUTION,
)
"""In order. Part of the thirteenth comes early: a delegation that was revoked signs nothing."""
