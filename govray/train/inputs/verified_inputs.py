"""A run's inputs, verified before anything else happens: root, policy, credentials.

Signatures are checked at one reference time. No record is read here: admission does that
afterwards, for corpora that passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from shlex import quote

from govray.data.corpus import read_credentials, verify_credentials
from govray.errors import Untrusted, UsageError
from govray.governance.formats.document import format_time, parse_time
from govray.governance.formats.keys import PublicKey
from govray.governance.policy.credential import Credential, CredentialClass
from govray.governance.policy.depth_policy import Policy, verify_policy
from govray.governance.trust.anchor import TrustAnchor
from govray.governance.trust.revocation_list import Revocations, check_fresh
from govray.governance.trust.trust_state import TrustState, Verified
from govray.storage.place import Place
from govray.train.inputs.revocation_feed import (
    RevocationSource,
    credential_name,
    kept_lists,
    policy_name,
    read_lists,
    revoked_names,
)
from govray.train.run_folder.clock import instant


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
    revocation_paths: tuple[str, ...] = ()
    revocation_bytes: tuple[bytes, ...] = ()
    revocations: Revocations | None = None

    @property
    def anchor(self) -> TrustAnchor:
        """The anchor for other models that the run verifies: its own root and lists.

        The lists are a feed: they cover all of the run's authorities, some of which another model
        may not have.
        """
        return TrustAnchor(self.root_bytes, feed=self.revocation_bytes)

    @property
    def classes(self) -> dict[str, CredentialClass]:
        """Corpus to credential class."""
        return {corpus: v.document.credential_class for corpus, v in self.credentials.items()}

    def expiries(self, corpora: Sequence[str]) -> dict[str, datetime]:
        """When the policy and each of these corpora's credentials end, by name.
        Neither holds longer than the authorities that signed it, nor than the trust root."""
        policy, root = self.policy, self.trust.root.expires
        signed_until = max(authority.expires for authority in policy.authorities)
        dates = {policy_name(policy.document): min(policy.document.valid.until, signed_until, root)}
        for corpus in corpora:
            credential = self.credentials[corpus]
            [issuer] = [a for a in credential.authorities if a.name == credential.document.issuer]
            dates[credential_name(corpus)] = min(
                credential.document.valid.until, issuer.expires, root
            )
        return {name: parse_time(until) for name, until in dates.items()}

    def revocation_source(self, corpora: Sequence[str]) -> RevocationSource | None:
        """The source of lists for rank 0 to follow, if there are any."""
        if self.revocations is None:
            return None
        return RevocationSource(
            paths=self.revocation_paths,
            root=self.root_bytes,
            delegations=self.delegations,
            policy=self.policy,
            credentials={corpus: self.credentials[corpus] for corpus in corpora},
            accepted=self.revocations,
        )

    def operator_keys(self, at: datetime) -> list[str]:
        """Key ids of the operators that hold at a time, sorted.

        Prepared data are told apart by them, not by who signed. What one of them prepared all can
        use. After a rotation no folder of a former key is in the way.
        """
        return sorted(
            {
                key.keyid
                for authority in self.trust.authorities
                if authority.role == "operator" and at < parse_time(authority.expires)
                for key in authority.keys
            }
        )

    def check_operator(self, key: PublicKey) -> None:
        """Refuse a run that this key could not attest."""
        operators = [a for a in self.trust.authorities if a.role == "operator"]
        if not any(key in authority.keys for authority in operators):
            raise Untrusted(
                f"the attestation key {key.keyid[:12]}… belongs to no operator of the trust root",
                where="attestation_key",
                do=f"Use the key of {', '.join(a.name for a in operators) or 'an operator'}",
            )


def load_inputs(
    corpora: Place,
    policy: Place,
    trust_root: Place,
    delegations: Sequence[Place],
    revocations: Sequence[Place] = (),
    *,
    at: datetime,
    resumed: Place | None = None,
) -> Inputs:
    """Read and verify the trust root, the policy, all credentials and revocation lists.

    Args:
        at: The time at which they must be valid: when the run began, or begins.
        resumed: Folder of the run to resume. Lists are today's, and must extend those that it
            accepted. Its steps find out what they revoke.

    Raises:
        Refused: A corpus has no credential, a signature, scope, window or version is not valid, or
            something is revoked.
        CouldNotCheck: The trust root asks for a revocation list, or for a newer one.
    """
    root_bytes = read(trust_root, "trust root")
    delegated = tuple(read(path, "delegation") for path in delegations)
    try:
        trust = TrustState.load(root_bytes, at=at, delegations=delegated)
    except Untrusted as error:
        if error.where == "trust root":  # which of those that lie about
            raise Untrusted(error.what, where=f"trust root {trust_root}", do=error.do) from error
        raise
    lists, given, today = None, read_lists(revocations), instant() if resumed else at
    if given:
        before = kept_lists(resumed, trust, at=today) if resumed else None
        lists = Revocations.load(trust, given, at=today, previous=before)
    check_fresh(trust, lists, at=today)
    policy_bytes = read(policy, "signed policy")
    verified_policy = verify_policy(trust, policy_bytes, at=at)
    envelopes = read_credentials(corpora)
    credentials = verify_credentials(corpora, envelopes, trust, at=at)
    if lists and not resumed:
        check_unrevoked(lists, verified_policy, credentials, at)
    return Inputs(
        trust=trust,
        root_bytes=root_bytes,
        delegations=delegated,
        policy=verified_policy,
        policy_bytes=policy_bytes,
        credentials=credentials,
        credential_bytes=envelopes,
        revocation_paths=tuple(str(path.resolve()) for path in revocations),
        revocation_bytes=given,
        revocations=lists,
    )


def check_unrevoked(
    lists: Revocations,
    policy: Verified[Policy],
    credentials: Mapping[str, Verified[Credential]],
    at: datetime,
) -> None:
    """Refuse what was revoked at a time."""
    revoked = revoked_names(lists, policy, credentials)
    for name, found in sorted(revoked.items()):
        if found.since <= at:
            raise Untrusted(
                f"revoked since {format_time(found.since)}: {found.reason}",
                where=name,
                do=f"Leave it out, or ask {found.issuer} for a new one",
            )


def read(path: Place, what: str) -> bytes:
    """A signed file's bytes, or an error that names it and the command that makes it."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        source = f"{str(path).removesuffix('.json').removesuffix('.dsse')}.yaml"
        raise UsageError(
            f"no {what} here", where=str(path), do=f"Make it with `govray sign {quote(source)}`"
        ) from None
    except OSError as error:
        raise UsageError(f"{what} not readable: {error.strerror}", where=str(path)) from error
    if path.name.endswith((".yaml", ".yml")) and not data.startswith(b"{"):
        raise UsageError(
            f"no {what}, but the source of one",
            where=str(path),
            do=f"Sign it with `govray sign {quote(str(path))}`, and name the file that this writes",
        )
    return data
