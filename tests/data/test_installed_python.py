"""Source corpora: licences only from what the metadata states, others' code apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from govray.data.installed_python import (
    NOASSERTION,
    STANDARD_LIBRARY,
    SourceCorpus,
    classify,
    python_source,
    standard_library,
)
from govray.data.sources import trove_classifiers
from govray.governance.trust import license as spdx

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


def test_the_table_maps_to_known_licences_in_normal_form() -> None:
    table = {**trove_classifiers.CLASSIFIERS, **trove_classifiers.NAMES}
    for name, meanings in table.items():
        assert meanings, name
        for meaning in meanings:
            assert spdx.normalise(meaning) == meaning
            assert spdx.category(meaning) not in (None, "unknown"), meaning
    assert all(name == name.lower() for name in trove_classifiers.NAMES)


def test_code_of_others_is_a_corpus_of_its_own(tmp_path: Path) -> None:
    own = {
        "pkg/__init__.py": "own",
        "pkg/LICENSE": "the package's",
        "pkg/external/api.py": "own, whatever the folder's name may suggest",
        "pkg-1.0.dist-info/licenses/LICENSE": "the package's",
    }
    others = {
        "pkg/_vendor/certifi/core.py": "vendored",
        "pkg/vendored/x.py": "vendored",
        "pkg/extern/y.py": "vendored",
        "pkg/thirdparty_files/z.py": "vendored",
        "pkg/third_party/z.py": "vendored",
        "pkg/parsing/latex/grammar.py": "under a licence of its own",
        "pkg/parsing/latex/LICENSE.txt": "another one's",
        "pkg/copied/tool/main.py": "installed here with its metadata",
        "pkg/copied/tool-2.0.dist-info/METADATA": "Name: tool",
    }
    install(tmp_path, "pkg", ["License-Expression: MIT"], own | others)
    found = source(tmp_path)
    assert {n for n, _ in found["pkg"].files} == {n for n in own if n.endswith(".py")}
    assert {n for n, _ in found["pkg.vendored"].files} == {n for n in others if n.endswith(".py")}
    assert found["pkg"].license == "MIT"
    assert found["pkg.vendored"].license == NOASSERTION
    assert found["pkg.vendored"].reason.startswith("pkg is MIT, ")


def test_records_are_the_files_that_are_there(tmp_path: Path) -> None:
    files = {"pkg/b.py": "b", "pkg/a.py": "a", "pkg/empty.py": "", "pkg/data.json": "{}"}
    install(tmp_path, "My.Pkg_X", ["License-Expression: MIT"], files)
    (tmp_path / "pkg/a.py").unlink()
    assert list(source(tmp_path)["my-pkg-x"].records()) == [("pkg/b.py", b"b")]


def test_a_file_of_two_distributions_belongs_to_the_first(tmp_path: Path) -> None:
    install(tmp_path, "zeta", ["License-Expression: MIT"], {"shared.py": "s", "zeta.py": "z"})
    install(tmp_path, "alpha", ["License-Expression: ISC"], {"shared.py": "s"})
    found = source(tmp_path)
    assert [n for n, _ in found["alpha"].files] == ["shared.py"]
    assert [n for n, _ in found["zeta"].files] == ["zeta.py"]


def test_distributions_without_source_are_left_out(tmp_path: Path) -> None:
    install(tmp_path, "wrapper", ["License-Expression: MIT"], {"wrapper.so": "binary"})
    assert set(source(tmp_path)) == {STANDARD_LIBRARY}


def test_the_standard_library_is_what_every_machine_has() -> None:
    library = standard_library()
    names = [name for name, _ in library.files]
    assert library.license == "PSF-2.0"
    assert {"os.py", "json/decoder.py"} <= set(names)
    assert not any("site-packages" in n or n.startswith("test/") for n in names)
    assert names == sorted(names)


@pytest.mark.story
def test_this_environment_is_read_the_same_twice_and_every_file_once() -> None:
    found = python_source()
    assert found == python_source()
    names = [c.corpus for c in found]
    assert names == sorted(set(names))
    paths = [path for c in found for _, path in c.files]
    assert len(paths) == len(set(paths)) > 1000
    for c in found:
        spdx.normalise(c.license)
        assert c.files
        assert c.reason
    by_name = {c.corpus: c for c in found}
    assert by_name["hypothesis"].license == "MPL-2.0"
    assert by_name["hypothesis.vendored"].license == NOASSERTION
