"""The site of the docs: its build ends where a link, an anchor or a name leads nowhere."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.page_commands import part
from tests.support.tree import ROOT


@pytest.fixture(scope="module")
def build_site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "docs" / "build_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small(folder: Path, text: str) -> Path:
    """A site of two pages under the settings of ours."""
    settings = (ROOT / "docs" / "zensical.toml").read_text().replace("SOURCES", str(ROOT))
    pages = folder / "pages"
    pages.mkdir(parents=True)
    (pages / "README.md").write_text(f"# Home\n\n## A heading\n\n{text}\n")
    (pages / "other.md").write_text("# Other\n\n## `python -m this` there\n\n::: govray.storage\n")
    nav = 'nav = ["README.md", "other.md"]\n'
    settings = re.sub(r"nav = \[\n.*?^\]\n", nav, settings, flags=re.S | re.M)
    (folder / "zensical.toml").write_text(settings)
    return folder


SOUND = (
    "[a](other.md#python--m-this-there), [b](#a-heading), [c][govray.storage], "
    "[d](https://example.org)"
)


@pytest.mark.story
def test_a_sound_site_is_built_and_asks_no_other_host(
    build_site: ModuleType, tmp_path: Path
) -> None:
    folder = small(tmp_path / "sound", SOUND)
    assert build_site.build(folder) == 0
    html = (folder / "site" / "index.html").read_text()
    assert 'href="other.html#govray.storage"' in html
    fetched = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"?([^\"\s>]+)", html)
    assert fetched
    assert not [each for each in fetched if re.match(r"(https?:)?//", each)]
    assert "fonts.g" not in html


@pytest.mark.story
def test_what_leads_nowhere_ends_the_build(
    build_site: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    links = "[a](missing.md) [b](other.md#gone) [c][govray.nothing.of_this_name]"
    folder = small(tmp_path / "broken", f"{SOUND}\n\n{links}")
    assert build_site.build(folder) != 0
    told = "".join(capfd.readouterr())
    for lost in ("page does not exist", "anchor does not exist", "unresolved autoref"):
        assert told.count(lost) == 2, told  # its heading, and its mark below the line


def test_links_to_files_lead_somewhere(build_site: ModuleType, tmp_path: Path) -> None:
    assert build_site.lost() == []
    (tmp_path / "README.md").write_text(
        "[a](README.md#a) ![b](b.png) [c](https://example.org) [d](#d)\n```\n[e](e.md)\n```\n"
    )
    assert build_site.lost(tmp_path) == ["README.md: no file b.png"]


def test_every_page_is_in_the_navigation(build_site: ModuleType) -> None:
    settings = tomllib.loads((ROOT / "docs" / "zensical.toml").read_text())
    named = set(re.findall(r"[\w/.-]+\.md", str(settings["project"]["nav"])))
    written = {path.relative_to(ROOT).as_posix() for path in build_site.written()}
    generated = {f"docs/reference/{each}.md" for each in ("commands", "http", "python")}
    assert named == written | generated


def test_the_references_come_from_the_code(build_site: ModuleType) -> None:
    commands = build_site.commands()
    for verb in ("govray train", "govray model promote", "govray store rebuild"):
        assert f"`{verb}`" in commands
    api = "\n".join(build_site.http_api(build_site.openapi()))
    assert "### `GET /v1/models/{model}/versions/{version}/lineage`" in api
    assert "[ProblemDetails](#problemdetails)" not in api  # the errors stand once, at the top
    rooms = dict(build_site.room_pages())
    assert "::: govray.engine.step\n" in rooms["govray.engine"]
    assert "::: govray.train.worker.run\n" in rooms["govray.train.worker"]


def test_the_readme_is_short_and_leads_to_every_page() -> None:
    readme, index = ROOT / "README.md", ROOT / "docs" / "quickstart.md"
    assert len(readme.read_text().split()) <= 700
    assert "](docs/quickstart.md#all-pages)" in readme.read_text()
    listed = re.findall(r"\]\(([a-z-]+\.md)\)", part("docs/quickstart.md", "All pages"))
    pages = {page.name for page in index.parent.glob("*.md")} - {index.name}
    assert sorted(listed) == sorted(pages)
    navigation = (index.parent / "zensical.toml").read_text()
    assert {page for page in pages if f'"docs/{page}"' not in navigation} == set()
