"""Signing in with a password, and out again, over HTTP."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from dashboards.web.cookie import COOKIE
from tests.dashboards.pages.guest import GOOD, Guest, House, guest
from tests.running_gateway import Running, model, running_gateway

MODELS = [model("m", [{"kind": "scripted", "upstream_model": "x"}])]
START = "/dashboard"


async def _actions(running: Running) -> list[str]:
    async with running.engine.connect() as connection:
        rows = await connection.execute(text("SELECT action FROM audit_entry ORDER BY number"))
        return [row[0] for row in rows]


async def test_from_the_page_asked_for_and_back_to_it(tmp_path: Path) -> None:
    """Who is not signed in is asked to, and then is where they wanted to be; signing out ends it."""
    async with running_gateway(tmp_path, MODELS) as running, guest(running) as browser:
        await House(running).person()
        asked = await browser.get("/dashboard/account?x=1")
        assert (asked.status, asked.location) == (303, "/dashboard/sign-in?next=%2Fdashboard%2Faccount%3Fx%3D1")
        form = await browser.get(asked.location)
        assert form.status == 200
        assert 'value="/dashboard/account?x=1"' in form.text
        there = await browser.sign_in("ada@acme.test", GOOD, "/dashboard/account?x=1")
        assert (there.status, there.location) == (303, "/dashboard/account?x=1")
        assert (await browser.get(there.location)).status == 200
        assert (await browser.get("/dashboard/sign-in")).location == START
        kept = browser.cookies[COOKIE]
        out = await browser.post("/dashboard/sign-out")
        assert (out.status, out.location) == (303, "/dashboard/sign-in?told=out")
        assert "signed out" in (await browser.get(out.location)).text
        assert not browser.is_in
        browser.cookies[COOKIE] = kept
        assert (await browser.get("/dashboard/account")).status == 303
        assert await _actions(running) == ["person.signed_in", "person.signed_out"]


async def test_the_cookie_is_kept_from_scripts_and_other_hosts(tmp_path: Path) -> None:
    """Secure, HttpOnly, SameSite=Lax, for the whole host and for no domain, until the browser is closed."""
    async with running_gateway(tmp_path, MODELS) as running, guest(running) as browser:
        await House(running).person()
        reply = await browser.sign_in("ada@acme.test", GOOD)
        [line] = [each for each in browser.set if each.startswith(f"{COOKIE}=")]
        attributes = {part.strip().lower() for part in line.split(";")[1:]}
        assert attributes == {"httponly", "secure", "samesite=lax", "path=/"}
        assert reply.headers["cache-control"] == "no-store"


async def test_a_planted_cookie_is_worth_nothing(tmp_path: Path) -> None:
    """Signing in gives a cookie of its own, and ends the session that the browser brought."""
    async with running_gateway(tmp_path, MODELS) as running, guest(running) as browser:
        house = House(running)
        await house.person()
        eve = await house.person("eve@acme.test")
        planted = await house.sessions.open(eve.person_id, via="password", address="", agent="")
        browser.cookies[COOKIE] = planted
        await browser.sign_in("ada@acme.test", GOOD)
        assert browser.cookies[COOKIE] != planted
        assert await house.sessions.find(planted) is None
        found = await house.sessions.find(browser.cookies[COOKIE])
        assert found is not None
        assert found.person.email == "ada@acme.test"


async def test_wrong_is_wrong_whoever_it_is(tmp_path: Path) -> None:
    """A wrong password, an unknown address and a disabled account get the same page to the letter."""
    async with running_gateway(tmp_path, MODELS) as running, guest(running) as browser:
        house = House(running)
        await house.person()
        gone = await house.person("gon@acme.test")
        await house.people.disable(gone.person_id, organisation_id="default")
        pages = set()
        for email, password in (("ada@acme.test", "wrong"), ("eve@acme.test", GOOD), ("gon@acme.test", GOOD)):
            page = await browser.sign_in(email, password)
            assert page.status == 403
            assert not browser.is_in
            shown = page.text.replace(email, "EMAIL")
            pages.add(shown.replace(_nonce(page.text), "NONCE"))
        assert len(pages) == 1
        assert "address or the password is wrong" in pages.pop()


def _nonce(page: str) -> str:
    return page.partition('nonce="')[2].partition('"')[0]


async def test_too_many_failures_lock_and_are_told(tmp_path: Path) -> None:
    """The page says how long to wait, and so does Retry-After; the log of an unknown account has its entry too."""
    sign_in = {"failures": 3}
    async with running_gateway(tmp_path, MODELS, sign_in=sign_in) as running, guest(running) as browser:
        await House(running).person()
        for email in ("ada@acme.test", "nobody@acme.test"):
            for _ in range(3):
                assert (await browser.sign_in(email, "wrong")).status == 403
            locked = await browser.sign_in(email, GOOD)
            assert locked.status == 429
            assert 1 <= int(locked.headers["retry-after"]) <= 60
            assert "Try again in" in locked.text
            assert not browser.is_in
        assert await _actions(running) == ["person.locked_out"] * 2


@pytest.mark.parametrize(
    "elsewhere",
    ["https://evil.test/", "//evil.test/dashboard", "/\\evil.test", "/dashboard/../v1", "/dashboard//evil.test",
     "javascript:alert(1)", "/dashboardevil", "/dashboard/%2e%2e/x", "/dashboard/sign-out", "/dashboard\n",
     "/dashboard/" + "x" * 5_000],
)  # fmt: skip
async def test_nobody_is_sent_elsewhere(tmp_path: Path, elsewhere: str) -> None:
    """`next` leads to one of our own pages or to the start page."""
    async with running_gateway(tmp_path, MODELS) as running, guest(running) as browser:
        await House(running).person()
        assert (await browser.sign_in("ada@acme.test", GOOD, elsewhere)).location == START


@pytest.mark.parametrize(
    "headers",
    [{"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "https://evil.test"},
     {"origin": "null"}, {"sec-fetch-site": "none"}],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/dashboard/sign-in", "/dashboard/sign-out", "/dashboard/welcome/" + "a" * 43])
async def test_other_sites_cannot_send_the_forms(tmp_path: Path, path: str, headers: dict[str, str]) -> None:
    """Neither signing somebody in nor out works from elsewhere."""
    async with running_gateway(tmp_path, MODELS) as running, guest(running) as browser:
        await House(running).person()
        await browser.sign_in("ada@acme.test", GOOD)
        before = dict(browser.cookies)
        refused = await browser.post(path, {"email": "ada@acme.test", "password": GOOD}, headers)
        assert refused.status == 403
        assert browser.cookies == before
        assert (await browser.get("/dashboard/account")).status == 200


async def test_a_form_that_is_none_is_refused(tmp_path: Path) -> None:
    """Empty, too long and too large: each with a word of what is wrong, and never an error of ours."""
    async with running_gateway(tmp_path, MODELS) as running, guest(running) as browser:
        assert (await browser.post("/dashboard/sign-in")).status == 400
        assert (await browser.sign_in("a" * 300, GOOD)).status == 400
        assert (await browser.sign_in("ada@acme.test", "x" * 2_000)).status == 400
        assert (await browser.sign_in("ada@acme.test", "x" * 100_000)).status == 413
        assert (await browser.sign_in('"><script>alert(1)</script>', "\x00\x01")).status == 403


async def test_what_was_typed_is_inert_and_the_password_is_not_shown(tmp_path: Path) -> None:
    """The address comes back as text; the password never does."""
    async with running_gateway(tmp_path, MODELS) as running, guest(running) as browser:
        page = await browser.sign_in('"><img src=x onerror=alert(1)>', "a-secret-password")
        assert "<img src=x" not in page.text
        assert "a-secret-password" not in page.text


async def test_without_passwords_there_is_no_form(tmp_path: Path) -> None:
    """Where they are switched off, the page says so and the password is not even looked at."""
    async with running_gateway(tmp_path, MODELS, sign_in={"passwords": False}) as running, guest(running) as browser:
        await House(running).person()
        page = await browser.get("/dashboard/sign-in")
        assert 'type="password"' not in page.text
        refused = await browser.sign_in("ada@acme.test", GOOD)
        assert refused.status == 403
        assert "switched off" in refused.text
        assert not browser.is_in


async def test_providers_are_offered(tmp_path: Path) -> None:
    """Each has its link, which keeps where one wanted to go."""
    provider: dict[str, Any] = {"name": "corp", "label": "Corp ID", "issuer": "https://id.test", "client_id": "c"}
    sign_in = {"public_url": "https://weighbridge.test", "providers": [provider]}
    async with running_gateway(tmp_path, MODELS, sign_in=sign_in) as running, guest(running) as browser:
        page = await browser.get("/dashboard/sign-in?next=/dashboard/account")
        assert "Sign in with Corp ID" in page.text
        assert 'href="/dashboard/sign-in/corp?next=/dashboard/account"' in page.text


async def test_a_proxy_that_is_named_is_believed(tmp_path: Path) -> None:
    """Behind a proxy failures are counted by who sits before it; a header from anybody else says nothing."""
    sign_in = {"failures": 3, "trusted_proxies": ["127.0.0.0/8"]}
    async with running_gateway(tmp_path, MODELS, sign_in=sign_in) as running, guest(running) as browser:
        await House(running).person()

        async def attempt(number: int, password: str, forwarded: str) -> int:
            email = "ada@acme.test" if password == GOOD else f"person{number}@acme.test"
            headers = {"sec-fetch-site": "same-origin", "x-forwarded-for": forwarded}
            return (await browser.post("/dashboard/sign-in", {"email": email, "password": password}, headers)).status

        for number in range(15):
            # What the guesser writes itself stands before what the proxy adds.
            assert await attempt(number, "wrong", f"10.0.0.{number}, 192.0.2.1") == 403
        assert await attempt(0, GOOD, "192.0.2.1") == 429
        assert await attempt(0, GOOD, "192.0.2.2") == 303


async def _has_entered(browser: Guest) -> bool:
    return (await browser.get("/dashboard/account")).status == 200


async def test_who_is_disabled_is_out_at_the_next_click(tmp_path: Path) -> None:
    """No page is shown to somebody who was disabled a moment ago."""
    async with running_gateway(tmp_path, MODELS) as running, guest(running) as browser:
        house = House(running)
        ada = await house.person()
        await browser.sign_in("ada@acme.test", GOOD)
        assert await _has_entered(browser)
        await house.people.disable(ada.person_id, organisation_id="default")
        assert not await _has_entered(browser)
