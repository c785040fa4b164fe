"""A provider's statement: signed, about this model, by who may; and the file to fill in."""

from __future__ import annotations

import re

import pytest

from govray.errors import Malformed, Untrusted
from govray.evidence.reports.annex_xi import annex_xi, read_files
from govray.evidence.reports.eu_summary import eu_summary
from govray.evidence.reports.provider_statement import (
    ASKED,
    ProviderStatement,
    provider_template,
)
from govray.governance.formats import canonical_json
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.strict_yaml import read_yaml
from tests.evidence.reports.conftest import Deployed, resigned
from tests.support.world import AT


def test_operator_and_compliance_may_sign(described: Deployed) -> None:
    keys = described.world.keys
    assert described.verified(described.statement(provider="P")).authority.name == "operator"
    data = described.statement(provider="P")
    document = described.verified(data).document
    both = document.seal(keys.compliance)
    assert described.verified(both).authority.name == "compliance"
    with pytest.raises(Untrusted):  # two of two keys
        described.verified(document.seal(keys.compliance[:1]))


@pytest.mark.parametrize("who", ["stranger", "archive", "auditor"])
def test_nobody_else_may(described: Deployed, who: str) -> None:
    data = described.statement(provider="P")
    described.verified(data)
    keys = described.world.keys
    signer = LocalSigner.generate() if who == "stranger" else getattr(keys, who)
    with pytest.raises(Untrusted):
        described.verified(resigned(data, signer))


def test_an_unsigned_or_changed_one_is_refused(described: Deployed) -> None:
    with pytest.raises(Malformed, match="it is not signed"):
        described.verified(b"schema: govray.dev/provider-statement/v1\nname: x\n")
    data = described.statement(provider="P")
    middle = data.index(b'"payload":"') + 200
    other = b"A" if data[middle : middle + 1] != b"A" else b"B"
    with pytest.raises((Malformed, Untrusted)):
        described.verified(data[:middle] + other + data[middle + 1 :])


def test_one_of_another_model_is_refused(described: Deployed, plain: Deployed) -> None:
    other = ProviderStatement(
        name="example",
        version=1,
        attestation=plain.model.digest,
        issued="2026-11-19T00:00:00Z",
        provider="P",
    )
    data = other.seal([described.world.keys.operator])
    with pytest.raises(Untrusted, match="it is about the attestation"):
        described.verified(data)


def test_golden_statement() -> None:
    """Statements travel and are kept for years, so their bytes are fixed."""
    statement = ProviderStatement(
        name="m",
        version=1,
        attestation="sha256:" + "0" * 64,
        issued="2026-11-19T00:00:00Z",
        provider="P",
        small_or_medium=True,
    )
    assert canonical_json.encode(statement.to_json()) == (
        b'{"attestation":"sha256:' + b"0" * 64 + b'","issued":"2026-11-19T00:00:00Z","name":"m",'
        b'"provider":"P","smallOrMedium":true,"version":1}'
    )
    assert len(ASKED) == len(set(ASKED)) == len(ProviderStatement.model_fields) - 4


def test_every_line_of_it_can_be_answered(plain: Deployed) -> None:
    model = plain.model
    drafts = [eu_summary(model), annex_xi(model, read_files(model))]
    text = provider_template("m", model.digest, drafts, at=AT)

    def read(source: str) -> ProviderStatement:
        value = read_yaml(source, name="provider.yaml").value
        assert isinstance(value, dict)
        del value["schema"]
        return ProviderStatement.from_source(value)

    assert read(text).stated == ()
    answered = read(re.sub(r"^#(\w+: )", r"\1", text, flags=re.M))
    statement = plain.verified(answered.seal([plain.world.keys.operator]))
    for draft in (eu_summary(model, statement), annex_xi(model, read_files(model), statement)):
        assert draft.count("missing") == 0
        assert draft.count("asked") > 10
