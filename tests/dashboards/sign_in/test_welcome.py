"""One-time links over HTTP."""

import logging
from pathlib import Path

import pytest
from sqlalchemy import text

from accounts.people.links import link_url
from dashboards.web.cookie import COOKIE
from tests.dashboards.pages.guest import BETTER, GOOD, House, guest
from tests.running_gateway import model, running_gateway

MODELS = [model("m", [{"kind": "scripted", "upstream_model": "x"}])]


def _path(token: str) -> str:
    return link_url("", token)


async def test_a_link_lets_somebody_in(tmp_path: Path) -> None:
    """Look, choose a password, be signed in; the link is used up, and the entry of it holds no secret."""
    async with running_gateway(tmp_path, MODELS) as running, guest(running) as browser, guest(running) as other:
        house = House(running)
        ada = await house.people.create("default", "ada@acme.test", "Ada <b>", role="admin")
        token = await house.links.make(ada.person_id)
        for _ in range(3):
            page = await browser.get(_path(token))
            assert page.status == 200
            assert "Ada &lt;b&gt;" in page.text
        assert not browser.is_in
        there = await browser.post(_path(token), {"password": GOOD, "again": GOOD})
        assert (there.status, there.location) == (303, "/dashboard")
        assert (await browser.get("/dashboard/account")).status == 200
        assert (await other.get(_path(token))).status == 404
        assert (await other.post(_path(token), {"password": BETTER, "again": BETTER})).status == 404
        assert (await other.sign_in("ada@acme.test", GOOD)).status == 303
        async with running.engine.connect() as connection:
            log = str((await connection.execute(text("SELECT * FROM audit_entry ORDER BY number"))).all())
        assert "person.password_set" in log
        for secret in (token, GOOD, "argon2", browser.cookies[COOKIE]):
            assert secret not in log


async def test_a_mistake_leaves_the_link(tmp_path: Path) -> None:
    """Two that differ, a weak one and none: the page says what to do, shows nothing typed, and can be sent again."""
    async with running_gateway(tmp_path, MODELS) as running, guest(running) as browser:
        house = House(running)
        ada = await house.people.create("default", "ada@acme.test", "Ada")
        token = await house.links.make(ada.person_id)
        for password, again, told in (
            (GOOD, BETTER, "not the same"),
            ("short", "short", "at least 12"),
            ("", "", "Choose a password"),
            ("ada@acme.test1", "ada@acme.test1", "name, e-mail"),
        ):
            page = await browser.post(_path(token), {"password": password, "again": again})
            assert page.status == 400
            assert told in page.text
            assert not password or f'value="{password}"' not in page.text
            assert not browser.is_in
        assert (await browser.post(_path(token), {"password": GOOD, "again": GOOD})).status == 303


async def test_a_new_password_ends_what_was_open(tmp_path: Path) -> None:
    """Whoever was signed in with the old password is out."""
    async with running_gateway(tmp_path, MODELS) as running, guest(running) as thief, guest(running) as browser:
        house = House(running)
        ada = await house.person()
        await thief.sign_in("ada@acme.test", GOOD)
        token = await house.links.make(ada.person_id)
        page = await browser.get(_path(token))
        assert "Choose a new password" in page.text
        await browser.post(_path(token), {"password": BETTER, "again": BETTER})
        assert (await thief.get("/dashboard/account")).status == 303
        assert (await browser.get("/dashboard/account")).status == 200


async def test_what_is_no_link_looks_like_a_used_one(tmp_path: Path) -> None:
    """Never made, replaced, of somebody disabled, or with passwords switched off."""
    async with running_gateway(tmp_path, MODELS) as running, guest(running) as browser:
        house = House(running)
        ada = await house.people.create("default", "ada@acme.test", "Ada")
        replaced = await house.links.make(ada.person_id)
        taken_back = await house.links.make(ada.person_id)
        await house.people.disable(ada.person_id, organisation_id="default")
        for token in (replaced, taken_back, "a" * 43, "x", "%00"):
            page = await browser.get(_path(token))
            assert page.status == 404, token
            assert "Error" in page.text or "Ask an administrator" in page.text


async def test_without_passwords_no_link_works(tmp_path: Path) -> None:
    """Where passwords are switched off none can be chosen."""
    async with running_gateway(tmp_path, MODELS, sign_in={"passwords": False}) as running, guest(running) as browser:
        house = House(running)
        ada = await house.people.create("default", "ada@acme.test", "Ada")
        token = await house.links.make(ada.person_id)
        assert (await browser.post(_path(token), {"password": GOOD, "again": GOOD})).status == 404


async def test_a_failing_database_puts_no_token_into_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is good for a password until it is used, and logs are read by more people than that."""
    async with running_gateway(tmp_path, MODELS) as running, guest(running) as browser:
        house = House(running)
        ada = await house.people.create("default", "ada@acme.test", "Ada")
        token = await house.links.make(ada.person_id)
        async with running.engine.begin() as connection:
            await connection.execute(text("ALTER TABLE one_time_link RENAME TO lost"))
        for name in ("weighbridge.app", "uvicorn.error"):
            logging.getLogger(name).addHandler(caplog.handler)
        try:
            assert (await browser.get(_path(token))).status == 503
        finally:
            for name in ("weighbridge.app", "uvicorn.error"):
                logging.getLogger(name).removeHandler(caplog.handler)
    assert "the database did not answer for /dashboard/welcome/{token}" in caplog.text
    assert token not in caplog.text
