"""What a run rests on, verified before anything else happens: root, policy, credentials.

Reads files and checks signatures at one reference time. Nothing here reads a
record: admission does that afterwards, and only for what passed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from govray.data.admission import read_credentials, verify_credentials
from govray.errors import Untrusted, UsageError
from govray.governance.credential import Credential, CredentialClass
from govray.governance.document import parse_time
from govray.governance.keys import PublicKey
from govray.governance.policy import Policy, verify_policy
from govray.governance.trust import TrustState, Verified


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Verified inputs and the exact bytes that were verified."""

    trust: TrustState
    root_bytes: bytes
    delegations: tuple[bytes, ...]
    policy: Verified[Policy]
    policy_bytes: bytes
    credentials: dict[str, Verified[Credential]]
    credential_bytes: dict[str, bytes]

    @property
    def classes(self) -> dict[str, CredentialClass]:
        """Corpus to credential class."""
        return {corpus: v.document.credential_class for corpus, v in self.credentials.items()}

    def expiries(self, corpora: Sequence[str]) -> dict[str, datetime]:
        """When the policy and each of these corpora's credentials expire, by name."""
        dates = {f"policy {self.policy.document.name}": self.policy.document.valid.until}
        for corpus in corpora:
            dates[f"credential {corpus}"] = self.credentials[corpus].document.valid.until
        return {name: parse_time(until) for name, until in dates.items()}

    def check_operator(self, key: PublicKey) -> None:
        """Refuse to begin what this key could not attest.

        Raises:
            Untrusted: The trust root names no operator with this key.
        """
        operators = [a for a in self.trust.authorities if a.role == "operator"]
        if not any(key in authority.keys for authority in operators):
            raise Untrusted(
                f"the attestation key {key.keyid[:12]}… belongs to no operator of the trust root",
                where="attestation_key",
                do=f"Use the key of {', '.join(a.name for a in operators) or 'an operator'}",
            )


def load_inputs(
    corpora: Path, policy: Path, trust_root: Path, delegations: Sequence[Path], *, at: datetime
) -> Inputs:
    """Read and verify the trust root, the policy and every corpus's credential.

    Raises:
        UsageError: A file or the folder of corpora is missing.
        Refused: A corpus has no credential, or a signature, scope, window or
            version is not in order.
    """
    root_bytes = read(trust_root, "trust root", "govray sign policies/root.yaml")
    delegated = tuple(read(path, "delegation", "govray sign FILE") for path in delegations)
    trust = TrustState.load(root_bytes, at=at, delegations=delegated)
    policy_bytes = read(policy, "signed policy", "govray sign policies/licences.yaml")
    verified_policy = verify_policy(trust, policy_bytes, at=at)
    if verified_policy.document.on_expiry != "stop":
        raise UsageError("runs can only stop at an expiry so far", where=str(policy))
    envelopes = read_credentials(corpora)
    credentials = verify_credentials(corpora, envelopes, trust, at=at)
    return Inputs(
        trust=trust,
        root_bytes=root_bytes,
        delegations=delegated,
        policy=verified_policy,
        policy_bytes=policy_bytes,
        credentials=credentials,
        credential_bytes=envelopes,
    )


def read(path: Path, what: str, make: str) -> bytes:
    """A file's bytes, or an error that says what it is and which command makes it."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"no {what} here", where=str(path), do=f"Make it with `{make}`") from None
    except OSError as error:
        raise UsageError(f"{what} not readable: {error.strerror}", where=str(path)) from error
