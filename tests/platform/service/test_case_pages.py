"""Pages of rights holders' cases, in a real browser: from the form to a linked version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from sqlmodel import Session

from govray.cli import main
from govray.data.similarity.near_copies import near_records
from govray.platform.service.http.settings import CaseSettings
from tests.support.case_world import MODEL, CaseWorld, add_version, case_world, reworded
from tests.support.chromium import browser
from tests.support.site import reader, served, whole

pytestmark = [pytest.mark.story, pytest.mark.browser]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaseWorld]:
    with case_world(tmp_path_factory.mktemp("case-pages")) as made:
        yield made


@pytest.fixture(scope="module")
def address(world: CaseWorld) -> Iterator[str]:
    desk = CaseSettings(
        key=str(world.deployed.key),
        without_token=True,
        per_day=1000,
        corpora=world.deployed.corpora,
    )
    url = world.service.app.state.settings.store
    with served(url, auth=True, near=near_records, cases=desk) as found:
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def asked(page: Page, address: str, text: str, contact: str = "rights@example.org") -> str:
    """The address of a new case's page, by the form."""
    page.goto(f"{address}/ask")
    page.get_by_label("Who asks").fill(contact)
    page.get_by_label("The work, or a part of it").fill(text)
    whole(page)
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("status")).to_contain_text("Your case is c-")
    whole(page)
    found = page.locator("#standing").get_attribute("href")
    assert found is not None
    return address + found


def test_a_rights_holder_is_answered_and_shown_the_next_attestation(
    world: CaseWorld, address: str, chromium: Browser, tmp_path: Path
) -> None:
    """A paragraph with changed words is found, its adapter removed, and the case closed by that."""
    holder = reader(chromium, address)
    own = asked(holder, address, reworded(world.trained("acme")))
    holder.goto(own)
    expect(holder.locator("main")).to_contain_text("Not answered yet")
    case = own.split("/")[-2]

    staff = reader(chromium, address, world.service.tokens["admin"])
    staff.goto(f"{address}/cases")
    whole(staff)
    staff.get_by_role("link", name=case).click()
    staff.get_by_role("button", name="Search the records").click()
    expect(staff.locator("main")).to_contain_text("a near copy")
    expect(staff.locator("main")).to_contain_text("acme")
    whole(staff)
    staff.get_by_role("button", name="Sign the answer").click()
    expect(staff.locator("main")).to_contain_text("Names told: none")

    holder.goto(own)
    main_part = holder.locator("main")
    expect(main_part).to_contain_text("a near copy")
    expect(main_part).to_contain_text("adapter:*")
    expect(main_part).not_to_contain_text("acme")
    whole(holder)
    with holder.expect_download() as given:
        holder.get_by_role("link", name="The signed answer").click()
    answer, root = tmp_path / "answer.dsse.json", tmp_path / "root.json"
    given.value.save_as(answer)
    root.write_bytes(world.deployed.world.root)
    assert main(["verify", str(answer), "--trust-root", str(root)]) == 0
    assert main(["show", str(answer)]) == 0

    staff.get_by_label("Decide").select_option("removed")
    staff.get_by_label("Reason, which the requester reads").fill("The adapter is deleted.")
    staff.get_by_role("button", name="Decide").click()
    expect(staff.locator("main")).to_contain_text(f"Still missing: {MODEL}")
    # The version that it was found in shows nothing of that.
    staff.get_by_label("Version").fill("1.0.0")
    staff.get_by_role("button", name="Link the version").click()
    expect(staff.locator("main")).to_contain_text("this is a version that it was found in")
    staff.wrong.clear()  # type: ignore[attr-defined]  # the browser tells a 409

    removed(world, root)
    staff.goto(f"{address}/cases/{case}")
    staff.get_by_label("Version").fill("1.2.0")
    staff.get_by_role("button", name="Link the version").click()
    expect(staff.locator("main")).to_contain_text("It is closed")
    expect(staff.locator("main")).to_contain_text("no longer kept")
    whole(staff)

    holder.goto(own)
    expect(main_part).to_contain_text(f"{MODEL} 1.2.0 shows it")
    expect(main_part).to_contain_text(world.deployed.verified("1.2.0").digest)
    whole(holder)
    phone = reader(chromium, address, width=390)
    phone.goto(own)
    whole(phone, 390)


def removed(world: CaseWorld, root: Path) -> None:
    """The command removes the adapter from a copy of the model, which is registered as 1.2.0."""
    deployed = world.deployed
    deployed.deploy("1.2.0", deployed.world, "run-first")
    words = ["adapter", "remove", str(deployed.models["1.2.0"]), "acme", "--key", str(deployed.key)]
    assert main([*words, "--trust-root", str(root), "--at", "2026-11-20T00:00:00Z"]) == 0
    with Session(world.service.engine) as session:
        add_version(session, deployed, "1.2.0")
        session.commit()
