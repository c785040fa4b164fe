"""Source corpora: licences only from what the metadata states, others' code apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from govray.data.installed_python import NOASSERTION, SourceCorpus, classify, python_source

BSD = "License :: OSI Approved :: BSD License"
MIT = "License :: OSI Approved :: MIT License"
APACHE = "License :: OSI Approved :: Apache Software License"


def install(
    site: Path, name: str, metadata: Sequence[str] = (), files: Mapping[str, str] | None = None
) -> PathDistribution:
    """What an installer leaves behind: the files, METADATA and RECORD."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    header = ["Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0", *metadata]
    (info / "METADATA").write_text("\n".join(header) + "\n\nLong description\n")
    listed = [f"{info.name}/METADATA,,", f"{info.name}/RECORD,,", "../../bin/tool.py,,"]
    for file, text in (files or {}).items():
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text(text)
        listed.append(f"{file},,")
    (info / "RECORD").write_text("\n".join(listed))
    return PathDistribution(info)


def source(site: Path) -> dict[str, SourceCorpus]:
    return {c.corpus: c for c in python_source([site])}


@pytest.mark.parametrize(
    ("metadata", "license", "reason"),
    [
        (["License-Expression: MIT"], "MIT", "License-Expression"),
        (["License-Expression: apache-2.0 or mit", "License: BSD"], "Apache-2.0 OR MIT", "Expr"),
        (["License-Expression: BSD so to say"], NOASSERTION, "is no SPDX expression"),
        (["License: MPL-2.0 AND MIT"], "MPL-2.0 AND MIT", '"MPL-2.0 AND MIT"'),
        (["License: Apache 2.0"], "Apache-2.0", '"Apache 2.0"'),
        (["License: Apache", f"Classifier: {APACHE}"], "Apache-2.0", '"Apache"'),
        (["License: BSD-3-Clause", f"Classifier: {BSD}"], "BSD-3-Clause", '"BSD License"'),
        (["License: GPLv2"], "GPL-2.0-only", '"GPLv2"'),
        ([f"Classifier: {MIT}", "Classifier: License :: OSI Approved"], "MIT", '"MIT License"'),
        (["License: MIT License\n    Permission is hereby", f"Classifier: {MIT}"], "MIT", "MIT"),
        ([f"Classifier: {BSD}"], NOASSERTION, '"BSD License" is no SPDX licence'),
        (["License: BSD", f"Classifier: {BSD}"], NOASSERTION, '"BSD License" is no SPDX licence'),
        (["License: Apache"], NOASSERTION, '"Apache" is no SPDX licence'),
        (["License: our own terms"], NOASSERTION, '"our own terms" is no SPDX licence'),
        (["License: Proprietary", f"Classifier: {MIT}"], NOASSERTION, '"Proprietary" is no'),
        (["Classifier: License :: Other/Proprietary License"], NOASSERTION, '"Other/Proprietary'),
        ([f"Classifier: {APACHE}", f"Classifier: {MIT}"], NOASSERTION, "unclear how it combines"),
        ([f"Classifier: {APACHE}", f"Classifier: {BSD}"], NOASSERTION, "unclear how it combines"),
        (["License: UNKNOWN"], NOASSERTION, "the metadata names no licence"),
        ([], NOASSERTION, "the metadata names no licence"),
    ],
)
def test_a_licence_is_what_the_metadata_states(
    tmp_path: Path, metadata: list[str], license: str, reason: str
) -> None:
    found, why = classify(install(tmp_path, "pkg", metadata))
    assert found == license
    assert reason in why


def test_a_file_of_two_distributions_belongs_to_the_first(tmp_path: Path) -> None:
    install(tmp_path, "zeta", ["License-Expression: MIT"], {"shared.py": "s", "zeta.py": "z"})
    install(tmp_path, "alpha", ["License-Expression: ISC"], {"shared.py": "s"})
    found = source(tmp_path)
    assert [n for n, _ in found["alpha"].files] == ["shared.py"]
    assert [n for n, _ in found["zeta"].files] == ["zeta.py"]
