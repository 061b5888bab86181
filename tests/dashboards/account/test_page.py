"""One's own account over HTTP."""

import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text

from dashboards.account.page import device
from dashboards.web.cookie import COOKIE
from tests.dashboards.pages.guest import BETTER, GOOD, Guest, House, guest
from tests.running_gateway import Running, model, running_gateway

MODELS = [model("m", [{"kind": "scripted", "upstream_model": "x"}])]
ACCOUNT = "/dashboard/account"


@contextlib.asynccontextmanager
async def _ada(running: Running) -> AsyncIterator[Guest]:
    async with guest(running) as browser:
        assert (await browser.sign_in("ada@acme.test", GOOD)).status == 303
        yield browser


async def _send(browser: Guest, what: str, **fields: str) -> tuple[int, str]:
    page = await browser.get(ACCOUNT)
    found = re.search(r'name="csrf" value="([^"]+)"', page.text)
    assert found is not None
    answer = await browser.post(f"{ACCOUNT}/{what}", {"csrf": found[1], **fields})
    return answer.status, answer.text


async def _change(browser: Guest, current: str, password: str, again: str | None = None) -> tuple[int, str]:
    return await _send(browser, "password", current=current, password=password, again=again or password)


async def test_it_says_who_one_is(tmp_path: Path) -> None:
    """Name, address, role and teams, with nothing in them taken for markup."""
    async with running_gateway(tmp_path, MODELS) as running:
        house = House(running)
        ada = await house.person(role="finance", name="<script>alert(1)</script>")
        await house.people.put_member(ada.person_id, "team_a", "admin", organisation_id="default")
        async with _ada(running) as browser:
            page = (await browser.get(ACCOUNT)).text
        assert "<script>alert(1)" not in page
        for told in ("ada@acme.test", "Finance: can read everything", "Team administrator", "&lt;script&gt;alert(1)"):
            assert told in page


async def test_the_password_is_changed_by_who_knows_it(tmp_path: Path) -> None:
    """The old one is asked for; afterwards this browser has a new session and the others none."""
    async with running_gateway(tmp_path, MODELS) as running:
        await House(running).person()
        async with _ada(running) as browser, _ada(running) as other, guest(running) as third:
            before = browser.cookies[COOKIE]
            assert await _change(browser, "wrong wrong wrong", BETTER) == (400, _containing("not your current"))
            assert await _change(browser, GOOD, BETTER, GOOD) == (400, _containing("not the same"))
            assert await _change(browser, GOOD, "x" * 5_000) == (400, _containing("At most"))
            assert await _change(browser, GOOD, "short") == (400, _containing("at least 12"))
            assert (await other.get(ACCOUNT)).status == 200
            assert (await _change(browser, GOOD, BETTER))[0] == 303
            assert browser.cookies[COOKIE] != before
            assert "password is changed" in (await browser.get(ACCOUNT)).text
            assert (await other.get(ACCOUNT)).status == 303
            assert (await third.sign_in("ada@acme.test", GOOD)).status == 403
            assert (await third.sign_in("ada@acme.test", BETTER)).status == 303
            other.cookies[COOKIE] = before
            assert (await other.get(ACCOUNT)).status == 303


class _Containing(str):
    """Equal to whatever has it in it."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and str(self) in other

    __hash__ = str.__hash__


def _containing(part: str) -> str:
    return _Containing(part)


async def test_guessing_the_password_here_locks_as_well(tmp_path: Path) -> None:
    """A session that somebody left open is no way to guess the password."""
    async with running_gateway(tmp_path, MODELS, sign_in={"failures": 3}) as running:
        await House(running).person()
        async with _ada(running) as browser:
            for _ in range(3):
                assert (await _change(browser, "wrong wrong wrong", BETTER))[0] == 400
            assert (await _change(browser, GOOD, BETTER))[0] == 429


async def test_devices_are_signed_out(tmp_path: Path) -> None:
    """One, the others, or all; each is an entry in the log, and nobody else's session can be named."""
    async with running_gateway(tmp_path, MODELS) as running:
        house = House(running)
        ada = await house.person()
        eve = await house.person("eve@acme.test")
        await house.sessions.open(eve.person_id, via="password", address="", agent="")
        [eves] = await house.sessions.of_person(eve.person_id)
        async with _ada(running) as here, _ada(running) as second, _ada(running) as third:
            found = await house.sessions.find(second.cookies[COOKIE])
            assert found is not None
            assert (await _send(here, "sessions/end", session=found.digest))[0] == 303
            assert (await second.get(ACCOUNT)).status == 303
            for nobodys in (eves.digest, "", "x" * 10_000):
                assert (await _send(here, "sessions/end", session=nobodys))[0] == 303
            assert len(await house.sessions.of_person(eve.person_id)) == 1
            assert (await _send(here, "sessions/end-others"))[0] == 303
            assert (await third.get(ACCOUNT)).status == 303
            assert len(await house.sessions.of_person(ada.person_id)) == 1
            assert (await _send(here, "sessions/end-all"))[0] == 303
            assert not here.is_in
            assert await house.sessions.of_person(ada.person_id) == []
        async with running.engine.connect() as connection:
            rows = (await connection.execute(text("SELECT action FROM audit_entry ORDER BY number"))).scalars().all()
        assert [each for each in rows if each != "person.signed_in"] == [
            "person.session_ended",
            "person.signed_out_elsewhere",
            "person.signed_out_everywhere",
        ]


@pytest.mark.parametrize("what", ["password", "sessions/end", "sessions/end-others", "sessions/end-all"])
async def test_nothing_changes_without_the_forms_own_token(tmp_path: Path, what: str) -> None:
    """From another site or without the token a form does nothing."""
    async with running_gateway(tmp_path, MODELS) as running:
        await House(running).person()
        async with _ada(running) as browser:
            assert (await browser.post(f"{ACCOUNT}/{what}")).status == 403
            assert (await browser.post(f"{ACCOUNT}/{what}", {"csrf": "a" * 43})).status == 403
            elsewhere = {"sec-fetch-site": "cross-site"}
            assert (await browser.post(f"{ACCOUNT}/{what}", {}, elsewhere)).status == 403
            assert (await browser.get(ACCOUNT)).status == 200


@pytest.mark.parametrize(
    ("agent", "told"),
    [
        ("Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Safari/537.36", "Chrome on Linux"),
        ("Mozilla/5.0 (Windows NT 10.0) Chrome/140.0 Safari/537.36 Edg/140.0", "Edge on Windows"),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) Version/18.0 Safari/604.1", "Safari on iPhone"),
        ("Mozilla/5.0 (Macintosh; Intel Mac OS X 10.15; rv:140.0) Gecko/20100101 Firefox/140.0", "Firefox on macOS"),
        ("curl/8.0", "curl"),
        ("", "Unknown"),
    ],
)  # fmt: skip
def test_a_device_is_named_in_words(agent: str, told: str) -> None:
    """As far as it says what it is."""
    assert device(agent) == told
