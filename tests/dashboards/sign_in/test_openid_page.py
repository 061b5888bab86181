"""Signing in through a real OpenID provider, from the button to the session, over HTTP."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from accounts.audit.log import AuditLog, Scope
from accounts.people.people import PeopleStore
from dashboards.sign_in.openid_page import BEGUN_COOKIE
from dashboards.web.cookie import COOKIE
from tests.oidc.real import PUBLIC_URL, Browser, RealProvider, browser, client, real_provider
from tests.running_gateway import Running, model, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

ACCOUNTS: Final[dict[str, dict[str, Any]]] = {
    "alice": {"email": "alice@example.com", "email_verified": True, "name": "Alice", "groups": ["team-a-admins"]},
    "bob": {"email": "bob@example.com", "email_verified": False, "name": "Bob"},
}
START: Final = "/dashboard/sign-in/idp"
CALLBACK: Final = f"{START}/callback"
MODELS: Final = [model("m", [{"name": "main", "kind": "scripted"}])]


class Reply(msgspec.Struct, frozen=True):
    """What a browser sees of an answer."""

    status: int
    location: str
    cookies: dict[str, str]
    set_cookie: list[str]
    headers: Mapping[str, str]
    text: str


class Visitor:
    """A browser at the gateway: it keeps cookies as `__Host-` ones are kept over https."""

    def __init__(self, session: aiohttp.ClientSession, gateway: Running, provider: Browser) -> None:
        self._session = session
        self._gateway = gateway
        self._provider = provider
        self.cookies: dict[str, str] = {}

    async def get(self, path: str, **headers: str) -> Reply:
        """One request, without following where it leads."""
        sent = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        async with self._session.get(
            self._gateway.url + path, headers={**headers, "cookie": sent}, allow_redirects=False
        ) as answer:
            given = answer.headers.getall("set-cookie", [])
            told: dict[str, str] = {}
            for line in given:
                for name, morsel in SimpleCookie(line).items():
                    told[name] = morsel.value
            self.cookies = {name: value for name, value in {**self.cookies, **told}.items() if value}
            return Reply(
                status=answer.status,
                location=answer.headers.get("location", ""),
                cookies=told,
                set_cookie=given,
                headers={name.lower(): value for name, value in answer.headers.items()},
                text=await answer.text(),
            )

    async def come_back(self, login: str, start: str = START) -> str:
        """To the provider and to its form; gives the address that it sends the browser back to."""
        began = await self.get(start)
        assert began.status == 303, began.text
        return (await self._provider.sign_in(began.location, login)).path

    async def sign_in(self, login: str, start: str = START) -> Reply:
        return await self.get(await self.come_back(login, start))


class Site(msgspec.Struct, frozen=True):
    """A gateway, its provider, and what is known of people."""

    gateway: Running
    real: RealProvider
    people: PeopleStore


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider() -> AsyncIterator[RealProvider]:
    async with real_provider([client("weighbridge", "idp")], ACCOUNTS) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def real(provider: RealProvider) -> RealProvider:
    """One for all tests, which each begin with the same accounts."""
    await provider.know(ACCOUNTS)
    return provider


@contextlib.asynccontextmanager
async def opened(folder: Path, real: RealProvider, **fields: Any) -> AsyncIterator[Site]:
    (folder / "secret").write_text("a secret + of/the tests%, 32 bytes and more")
    provider = {
        "name": "idp",
        "label": "<b>the</b> IdP",
        "issuer": real.issuer,
        "client_id": "weighbridge",
        "client_secret": f"file:{folder / 'secret'}",
        "scopes": ["openid", "email", "profile", "groups"],
        "create_people": True,
        "groups": [{"group": "team-a-admins", "team": "team_a", "team_role": "admin"}],
        "timeout_s": 30,
        **fields,
    }
    sign_in = {"public_url": PUBLIC_URL, "providers": [provider]}
    async with running_gateway(folder, MODELS, sign_in=sign_in) as gateway:
        yield Site(gateway, real, PeopleStore(gateway.engine))


@pytest_asyncio.fixture(loop_scope="module")
async def site(tmp_path: Path, real: RealProvider) -> AsyncIterator[Site]:
    async with opened(tmp_path, real) as made:
        yield made


@contextlib.asynccontextmanager
async def visitor(site: Site) -> AsyncIterator[Visitor]:
    async with browser() as provider, aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield Visitor(session, site.gateway, provider)


async def test_signing_in_opens_a_session(site: Site) -> None:
    """From the button over the provider to the page that was wanted, with the team that the group gives."""
    async with visitor(site) as alice:
        reply = await alice.sign_in("alice", f"{START}?next=%2Fdashboard%2Fteams%3Fq%3Dx")
        assert (reply.status, reply.location) == (303, "/dashboard/teams?q=x")
        assert alice.cookies.keys() == {COOKIE}
        page = await alice.get("/dashboard/batches")
        assert page.status == 200
        assert "Alice" in page.text
        team = await alice.get("/dashboard")
    assert team.location == "/dashboard/teams/team_a"
    person = await site.people.find("alice@example.com")
    assert person is not None
    assert await site.people.teams_of([person.person_id]) == {person.person_id: {"team_a": "admin"}}


async def test_cookies_are_for_this_host_alone(site: Site) -> None:
    """Both cookies are out of scripts' reach, and the sign-in's is taken back whatever comes of it."""
    async with visitor(site) as alice:
        began = await alice.get(START)
        (line,) = began.set_cookie
        assert line.startswith(f"{BEGUN_COOKIE}=")
        for word in ("HttpOnly", "Secure", "SameSite=lax", "Path=/", "Max-Age=600"):
            assert word in line
        assert "domain" not in line.lower()
        assert began.headers["cache-control"] == "no-store"
        refused = await alice.get(f"{CALLBACK}?state=guessed&code=x")
        assert refused.status == 400
        assert BEGUN_COOKIE not in alice.cookies
        ended = await alice.sign_in("alice")
        (session,) = [line for line in ended.set_cookie if line.startswith(f"{COOKIE}=")]
        for word in ("HttpOnly", "Secure", "SameSite=lax", "Path=/"):
            assert word in session


async def test_the_session_is_a_new_one(site: Site) -> None:
    """A cookie that was planted in the browser is not the one that signs in, and an old session of it ends."""
    async with visitor(site) as alice:
        alice.cookies[COOKIE] = "planted"
        await alice.sign_in("alice")
        first = alice.cookies[COOKIE]
        assert first != "planted"
        await alice.sign_in("alice")
        assert alice.cookies[COOKIE] != first
        alice.cookies[COOKIE] = first
        assert (await alice.get("/dashboard/batches")).status == 303


async def test_a_callback_is_good_once_and_in_its_own_browser(site: Site) -> None:
    """The address with the code is of no use to whoever finds it."""
    async with visitor(site) as alice, visitor(site) as mallory:
        path = await alice.come_back("alice")
        stolen = await mallory.get(path)
        assert stolen.status == 400
        assert COOKIE not in mallory.cookies
        # Nor with a sign-in of one's own: signing somebody in to another's account needs their cookie.
        await mallory.get(START)
        assert (await mallory.get(path)).status == 400
        kept = dict(alice.cookies)
        assert (await alice.get(path)).status == 303
        assert (await alice.get(path)).status == 400
        alice.cookies = kept
        again = await alice.get(path)
        assert again.status == 400
        assert "used already" in again.text


async def test_nobody_is_sent_elsewhere(site: Site) -> None:
    """`next` leads to our own pages or to the start page."""
    async with visitor(site) as alice:
        for wanted in ("https://evil.example", "//evil.example", "/\\evil.example", "/v1/models", "/dashboard/sign-in"):
            reply = await alice.sign_in("alice", f"{START}?next={wanted}")
            assert reply.location == "/dashboard"


async def test_who_may_not_enter_reads_why(site: Site) -> None:
    """A refusal is a page with a way on; it opens no session and tells nothing of others."""
    async with visitor(site) as bob:
        reply = await bob.sign_in("bob")
    assert reply.status == 403
    assert "does not vouch for an e-mail address" in reply.text
    assert "&lt;b&gt;the&lt;/b&gt; IdP" in reply.text
    assert "<b>the</b>" not in reply.text
    assert f'href="{START}"' in reply.text
    assert "content-security-policy" in reply.headers
    assert COOKIE not in bob.cookies
    assert await site.people.find("bob@example.com") is None


async def test_somebody_disabled_is_out(site: Site) -> None:
    """Signing in again is refused, and the session of before has ended."""
    async with visitor(site) as alice:
        await alice.sign_in("alice")
        person = await site.people.find("alice@example.com")
        assert person is not None
        await site.people.disable(person.person_id, organisation_id=person.organisation_id)
        assert (await alice.get("/dashboard/batches")).status == 303
        assert (await alice.sign_in("alice")).status == 403


async def test_leaving_a_group_takes_its_team_away(site: Site) -> None:
    """The next sign-in is enough, and sessions elsewhere see it too."""
    async with visitor(site) as alice, visitor(site) as elsewhere:
        await alice.sign_in("alice")
        assert (await alice.get("/dashboard")).location == "/dashboard/teams/team_a"
        await site.real.know({"alice": {**ACCOUNTS["alice"], "groups": []}})
        await elsewhere.sign_in("alice")
        assert (await alice.get("/dashboard")).location == "/dashboard/teams"


async def test_signing_in_is_remembered(site: Site) -> None:
    """The audit log has who came in, from where and how; it has no token."""
    async with visitor(site) as alice:
        await alice.sign_in("alice")
    entries = await AuditLog(site.gateway.engine).page(Scope(organisation_id="default"))
    by_action = {entry.action: entry for entry in entries}
    came = by_action["person.signed_in"]
    assert (came.actor_kind, came.actor_name, came.address) == ("person", "Alice", "127.0.0.1")
    assert '"oidc"' in came.after
    assert by_action["person.set"].actor_name == "Sign-in with <b>the</b> IdP"


async def test_logs_hold_no_secrets(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """What goes wrong is logged by its reason: no code, state, token or address of a person."""
    caplog.set_level("DEBUG")
    async with visitor(site) as bob, visitor(site) as alice:
        await bob.sign_in("bob")
        path = await alice.come_back("alice")
        await alice.get(path)
        await alice.get(path)
    assert "sign-in with idp stopped: email_unverified" in caplog.text
    assert "sign-in with idp stopped: callback: no sign-in was begun" in caplog.text
    ours = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("weighbridge"))
    for secret in (path.partition("code=")[2][:20], path.partition("state=")[2][:20], "bob@example.com", "secret +"):
        assert secret not in ours


async def test_an_unknown_provider_is_not_found(site: Site) -> None:
    """Names that are not configured lead nowhere, both ways."""
    async with visitor(site) as anybody:
        for path in ("/dashboard/sign-in/other", "/dashboard/sign-in/other/callback?state=x&code=y"):
            assert (await anybody.get(path)).status == 404


async def test_a_provider_that_is_down_is_said(tmp_path: Path, real: RealProvider) -> None:
    """The page says that it is the provider, and leaves no cookie behind; the gateway's own start did not need it."""
    async with opened(tmp_path, real, issuer="http://127.0.0.1:1") as site, visitor(site) as alice:
        reply = await alice.get(f"{START}?next=%2Fdashboard%2Fteams")
    assert reply.status == 502
    assert "does not answer as it should" in reply.text
    assert "next=%2Fdashboard%2Fteams" in reply.text
    assert alice.cookies == {}
