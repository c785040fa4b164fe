"""The attestor's register, as the service and the queue tell it things: with its token.

The service tells what it has accepted. The queue opens an attempt before its job starts. The token
goes with each request, so only over https or within this machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from govray.errors import GovrayError, InfrastructureFailed, Refused
from govray.governance.formats import canonical_json
from govray.governance.formats.document import Document
from govray.governance.submission.http_exchange import HttpAnswer, get, post
from govray.governance.submission.register_forms import (
    LARGEST,
    AcceptanceForm,
    AttemptForm,
    OtherThanAccepted,
)
from govray.governance.submission.token_file import check_private, read_token


class RegisterDoor(BaseModel):
    """Where the attestor's register is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(pattern=r"^https?://[^\s@]+$", description="The register's door.")
    token_file: str = Field(min_length=1, description="A file of mode 0600 with its token.")

    def check(self) -> None:
        """Return if nobody on the way reads what is sent there. Raises `Refused`."""
        here = "run the attestor on this machine"
        check_private(self.url, "attestor.token_file", where="attestor.url", do=here)

    def client(self) -> RegisterClient:
        """The register; the token is read now. Raises `Refused`: others than its owner may read it,
        or it would be sent in the clear."""
        self.check()
        token = read_token(Path(self.token_file).expanduser(), "the attestor's token")
        return RegisterClient(self.url, token)


class RegisterClient:
    """The register behind the door at ``url``. Each call raises `InfrastructureFailed`: the
    register does not answer, or not to us."""

    def __init__(self, url: str, token: str) -> None:
        self._below = f"{url.rstrip('/')}/v1/register/submissions"
        self._token = token

    def address(self, submission: str) -> str:
        """Where a submission's jobs post."""
        return f"{self._below}/{submission}"

    def accept(self, form: AcceptanceForm) -> None:
        """Register what was accepted. Again, nothing changes. Raises `Refused`."""
        self._post(self._below, form)

    def open(self, submission: str, form: AttemptForm) -> None:
        """Open an attempt.

        Raises:
            OtherThanAccepted: Something else was accepted, or nothing.
            Refused: A job of this attempt has posted, or a later attempt is open.
        """
        self._post(f"{self.address(submission)}/attempts", form)

    def shown(self, submission: str) -> Any:
        """All that is registered of a submission, as JSON."""
        url = self.address(submission)
        answer = get(url, where=url, bearer=self._token)
        if answer.status != 200:
            raise self._refusal(answer, url)
        return canonical_json.parse(answer.body, limit=LARGEST)

    def _post(self, url: str, form: Document) -> None:
        body = canonical_json.encode(form.to_json())
        answer = post(url, body, kind="application/json", where=url, bearer=self._token)
        if answer.status != 200:
            raise self._refusal(answer, url)

    def _refusal(self, answer: HttpAnswer, url: str) -> GovrayError:
        try:
            said: Any = canonical_json.parse(answer.body, limit=LARGEST)
            detail, do = str(said["detail"])[:500], said.get("do") and str(said["do"])[:500]
        except (GovrayError, KeyError, TypeError, AttributeError):
            detail, do = "it speaks as no register does", None
        if answer.status in (409, 412, 422):
            return (OtherThanAccepted if answer.status == 412 else Refused)(detail, do=do)
        return InfrastructureFailed(
            f"the attestor's register answers {answer.status}: {detail}",
            where=url,
            do="Check that the attestor runs, and attestor.url and attestor.token_file",
        )
