"""Every export of a model by the command, each accepted by its own tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from govray.evidence.exports.export_format import FORMATS, NAMES, SIGNED
from govray.governance.formats.keys import LocalSigner
from tests.support import official_validators as tools
from tests.support.command import Run, write_key


def export_all(run: Run, model: Path, out: Path, *check: object) -> dict[str, Any]:
    """Format → what its tool read."""
    signer = LocalSigner.generate("ecdsa-p256")
    out.mkdir()
    key = write_key(out / "key.pem", signer)
    (out / "key.pub").write_bytes(signer.public_key.to_pem())
    for name in NAMES:
        signing = ("--key", key) if name == SIGNED else ()
        told = run("model", "export", name, model, "--out", out, *signing, *check, "--json").json
        assert told["format"] == name
    signature = out / "model.sig"
    each = {name: sorted((out / FORMATS[name].place).iterdir()) for name in FOLDERS}
    return {
        SIGNED: tools.check_model_signing(model, signature, out / "key.pub"),
        "sigstore": [tools.check_sigstore(file.read_bytes()) for file in each["sigstore"]],
        "cyclonedx": tools.check_cyclonedx((out / "model.cdx.json").read_bytes()),
        "spdx": tools.check_spdx((out / "model.spdx3.json").read_bytes()),
        "croissant": [tools.check_croissant(file.read_bytes()) for file in each["croissant"]],
        "openlineage": tools.check_openlineage(
            (out / "openlineage.ndjson").read_bytes(), out / "sent.ndjson"
        ),
        "model-card": tools.check_model_card(out / "README.md"),
    }


FOLDERS = tuple(name for name, of in FORMATS.items() if of.each is not None)
