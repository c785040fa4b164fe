"""``attestor.yaml``: where the runs lie, where models go, which key signs. Read strictly.

A key is not in the file. It is where ``keys`` names it: a file, a module of PKCS#11, or a command.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import pydantic
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo

from govray.errors import Refused, UsageError
from govray.governance.formats.keys import in_file
from govray.governance.formats.strict_yaml import read_yaml_file
from govray.governance.submission.http_exchange import is_loopback
from govray.platform.attestor.confinement import ParserLimits
from govray.platform.attestor.staging import Bounds
from govray.storage.place import Place, place
from govray.storage.storage_url import check_path, is_url

DO = "See docs/attestor.md, and the example deploy/attestor.yaml"


def _near(path: Path, info: ValidationInfo) -> Path:
    folder: Path = (info.context or {})["folder"]
    return (folder / check_path(path).expanduser()).absolute()


def _near_if_path(text: str, info: ValidationInfo) -> str:
    return str(_near(Path(text), info)) if in_file(text) and not is_url(text) else text


Text = Annotated[str, Field(min_length=1)]
NearOrElse: TypeAlias = Annotated[Text, AfterValidator(_near_if_path)]
"""A path as `Near`, or what names no file: a URL, or a key of another kind."""
Near: TypeAlias = Annotated[Path, AfterValidator(_near)]
"""A path; a relative one is from the file's folder."""


class LimitSection(BaseModel):
    """What reading one run may take."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    memory: int = Field(default=ParserLimits.memory, ge=1 << 28, description="Bytes of the parser.")
    seconds: int = Field(default=ParserLimits.seconds, ge=1, description="Of its processor time.")
    bytes: int = Field(default=Bounds.bytes, ge=1, description="Of a run that are copied.")
    files: int = Field(default=Bounds.files, ge=1, description="Of a run that are copied.")


class AttestorSettings(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    register_url: Text = Field(alias="register", description="URL of the register's database.")
    host: str = Field(default="127.0.0.1", description="The address that the register listens on.")
    port: int = Field(default=8686, ge=0, le=65535, description="Its port there.")
    certificate: Near | None = Field(
        default=None, description="Its certificate, which another address than loopback needs."
    )
    certificate_key: Near | None = Field(
        default=None, description="The certificate's key: a file of mode 0600."
    )
    token_file: Near = Field(description="A file of mode 0600: service and queue send what it has.")
    storage: NearOrElse = Field(description="Where the runs lie: a path, or a URL.")
    prepared: Near = Field(description="Where prepared data lie, which jobs only read.")
    models: Near = Field(description="Where attested models go: no job may write there.")
    staging: Near = Field(description="A folder of the attestor's own, beside the models.")
    keys: tuple[NearOrElse, ...] = Field(
        min_length=1,
        description="The operator's keys, as many as have to sign: a path, pkcs11: or command:.",
    )
    key_password_file: Near | None = Field(default=None, description="Of encrypted keys.")
    trust_root: Near = Field(description="The signed trust root.")
    revocations: tuple[Near, ...] = Field(default=(), description="Signed revocation lists.")
    limits: LimitSection = Field(default_factory=LimitSection)

    @property
    def secrets(self) -> tuple[Path, ...]:
        """The files that the parser must not read."""
        keys = (Path(each) for each in self.keys if in_file(each))
        further = (self.key_password_file, self.certificate_key)
        return tuple(each for each in (self.token_file, *keys, *further) if each)

    @property
    def runs(self) -> Place:
        """Where the runs lie."""
        return place(self.storage)

    @property
    def confinement(self) -> ParserLimits:
        """What the parser may use."""
        return ParserLimits(memory=self.limits.memory, seconds=self.limits.seconds)

    @property
    def bounds(self) -> Bounds:
        """What is copied of a run at most."""
        return Bounds(bytes=self.limits.bytes, files=self.limits.files)


def read_settings(path: Path) -> AttestorSettings:
    """What the file says.

    Raises:
        UsageError: A field is missing, unknown or out of range.
        Refused: Tokens and secrets would come in the clear.
    """
    source = read_yaml_file(path, do=DO)
    try:
        found = AttestorSettings.model_validate(
            source.value, context={"folder": path.absolute().parent}
        )
    except pydantic.ValidationError as error:
        raise source.wrong(error, do=DO) from None
    try:
        place(found.storage)
    except ValueError as error:
        raise UsageError(str(error), where=source.where("storage"), do=DO) from None
    if (found.certificate is None) != (found.certificate_key is None):
        what, where = "a certificate has a key, and each is named", source.where("certificate")
        raise UsageError(what, where=where, do="Name certificate and certificate_key, or neither")
    if found.certificate is None and not is_loopback(found.host):
        raise Refused(
            f"the register's token would come to {found.host} in the clear",
            where=source.where("host"),
            do="Name certificate and certificate_key, or let it listen on 127.0.0.1",
        )
    return found
