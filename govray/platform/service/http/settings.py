"""What an operator of the service decides. One frozen value; nothing in the service is global."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from govray.errors import UsageError
from govray.governance.submission.register_client import RegisterDoor
from govray.platform.service.http.origin import TaskOrigins
from govray.storage.place import Place

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class OidcSettings:
    """An identity provider whose bearer tokens are accepted.

    Attributes:
        issuer: The ``iss`` that a token must have, exactly.
        role_claim: The claim, a text or a list of texts, that ``roles`` is asked about.
        roles: From a value of that claim to a role of ours. Without a match: refused.
        supplier_claim: The claim that names the supplier of a caller with the role supplier.
        groups_claim: The claim, a text or a list of texts, that names the groups of a caller, to
            which roles are bound.
        client_id: What people sign in as a client of, in a browser and at a terminal; None: they
            don't.
        client_secret_file: A file, of mode 0600, with the client's secret in its first line. A
            public client has none.
        redirect_url: Where the provider sends a browser back: ``/sign-in/callback`` of the address
            at which people reach this service. Without it nobody signs in there in a browser.
        scope: What the provider is asked for, ``openid`` among it.
    """

    issuer: str
    audience: str
    jwks_url: str
    role_claim: str = "groups"
    roles: Mapping[str, str] = field(default_factory=dict)
    supplier_claim: str = "supplier"
    groups_claim: str = "groups"
    client_id: str | None = None
    client_secret_file: Path | None = None
    redirect_url: str | None = None
    scope: str = "openid"


@dataclass(frozen=True, kw_only=True)
class CaseSettings:
    """That rights holders' cases are answered here, and how.

    Attributes:
        key: The reference of the operator's key that signs answers
            (`govray.governance.signers.key_reference`).
        per_day: Cases that one requester, or one address, may send in a day.
        corpora: The folder of corpora that lie at hand, for near copies, if any.
    """

    key: str
    without_token: bool = False
    per_day: int = 5
    corpora: Place | None = None

    def __post_init__(self) -> None:
        if self.per_day <= 0:
            raise UsageError("per_day is not above zero", where="cases")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the service runs.

    Attributes:
        store: The store's URL, as `govray.platform.store.database.open_store` takes it.
        auth: False makes every caller admin: for one person on loopback.
        oidc: An identity provider, beside the store's own tokens.
        hosts: The ``Host`` names that are answered; empty: any. Without ``auth`` this is what
            keeps a web page in the same browser from reading through a name of its own.
        promotion: The signed gates before a model's stages; without the file nothing is promoted.
        trust_root: Says whose signature of the gates counts; None: the one pinned here.
        revocations: Files of revocation lists, or folders of them, read again every few seconds.
        pinned: Whether the lists that the person who serves has pinned count beside those.
        storage: Where runs lie, and with them the archives of working directories. Without it,
            none is taken.
        rights: The file that says who may have which adapter's weights; without it nobody, but
            where there is no ``auth``.
        presigned: Files on an object store are fetched there, by a URL that the service signs.
        max_body: Bytes of a request's body.
        max_stranger_body: The same without a token that is accepted.
        max_checks: Uploaded attestations that are checked at the same time.
        time_limit: Seconds until a response must have begun.
        rate: Requests a second of one token, or of one address without a token.
        burst: Requests that may come at once before ``rate`` counts.
        max_streams: Live streams at the same time, and as many downloads.
        tasks: Where notebooks, shells and TensorBoard are shown; without it, nowhere.
        cases: How rights holders' cases are answered; without it, nobody can ask one.
        attestor: The attestor's register, which is told of each experiment.
    """

    store: str
    auth: bool = True
    oidc: OidcSettings | None = None
    hosts: tuple[str, ...] = ()
    promotion: Path = Path("policies/promotion.dsse.json")
    trust_root: Path | None = None
    revocations: tuple[Path, ...] = ()
    pinned: bool = False
    storage: Place | None = None
    rights: Path | None = None
    presigned: bool = False
    max_body: int = 16 * MIB
    max_stranger_body: int = MIB
    max_checks: int = 2
    time_limit: float = 30.0
    rate: float = 50.0
    burst: int = 200
    max_streams: int = 64
    tasks: TaskOrigins | None = None
    cases: CaseSettings | None = None
    attestor: RegisterDoor | None = None

    def __post_init__(self) -> None:
        sizes = (self.max_body, self.max_stranger_body, self.max_checks, self.max_streams)
        if min(*sizes, self.time_limit, self.rate, self.burst) <= 0:
            raise UsageError("a limit of the service is not above zero")
