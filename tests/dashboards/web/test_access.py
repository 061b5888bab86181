"""Who may open a page, and that a change comes from one of ours; on a real gateway."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from yarl import URL

from dashboards.web.cookie import COOKIE
from tests.running_gateway import Running, model, running_gateway
from tests.signed_in import Browser, signed_in

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = "/dashboard/batches"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One for all who only read."""
    async with running_gateway(
        tmp_path_factory.mktemp("shared"), [model("m", [{"kind": "scripted", "upstream_model": "x"}])]
    ) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def ann(running: Running) -> AsyncIterator[Browser]:
    async with signed_in(running, teams={"team_a": "admin"}) as found:
        yield found


async def test_a_stranger_is_led_to_signing_in(running: Running) -> None:
    """And back to where they wanted to go; a script is told, and so is who sends a form."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{running.url}{PAGE}?a=1&b=2", allow_redirects=False) as reply:
            assert reply.status == 303
            assert reply.headers["location"] == "/dashboard/sign-in?next=%2Fdashboard%2Fbatches%3Fa%3D1%26b%3D2"
        async with session.get(f"{running.url}{PAGE}", headers={"hx-request": "true"}) as reply:
            assert reply.status == 401
        async with session.get(f"{running.url}{PAGE}", headers={"cookie": f"{COOKIE}=nonsense"}, allow_redirects=False) as reply:  # fmt: skip
            assert reply.status == 303


async def test_an_api_key_opens_no_page(running: Running) -> None:
    """Pages want a session, and the API wants a key."""
    headers = {"authorization": f"Bearer {running.key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{running.url}{PAGE}", allow_redirects=False) as reply,
    ):
        assert reply.status == 303


async def test_pages_are_kept_safe(ann: Browser) -> None:
    """A content policy without inline code, with another nonce each time; nobody keeps or frames a page."""
    policies = set()
    for _ in range(2):
        page = await ann.get(PAGE)
        assert page.status == 200
        policy = page.headers["content-security-policy"]
        policies.add(policy)
        assert policy.startswith("default-src 'none'; script-src 'nonce-")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["x-content-type-options"] == "nosniff"
    assert len(policies) == 2


async def test_another_role(ann: Browser) -> None:
    """Pages that need another role say so; menus do not offer them."""
    page = await ann.get(PAGE)
    assert "/dashboard/finance" not in page.text
    assert "/dashboard/teams/team_a/keys" in page.text


async def test_no_such_page(ann: Browser) -> None:
    """A mistyped address is answered with a page."""
    page = await ann.get("/dashboard/nothing/here")
    assert page.status == 404
    assert page.headers["Content-Type"].startswith("text/html")
    assert "no such page" in page.text


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        # A browser that tells nothing of the site, but where the form was.
        {"origin": "https://evil.example"},
        {"origin": "null"},
    ],
)
async def test_forms_of_other_sites(ann: Browser, headers: dict[str, str]) -> None:
    """Whatever a foreign page has the browser send is refused, though it has the right secret."""
    page = await ann.send("/dashboard/account/sessions/end", {"csrf": ann.csrf}, headers)
    assert page.status == 403
    assert "another site" in page.text


@pytest.mark.parametrize("csrf", ["", "nonsense"])
async def test_forms_without_the_sessions_secret(ann: Browser, csrf: str) -> None:
    """A browser that tells nothing at all is held by it; and so is one that tells something."""
    for headers in ({}, {"sec-fetch-site": "same-origin"}):
        page = await ann.send("/dashboard/account/sessions/end", {"csrf": csrf}, headers)
        assert page.status == 403


async def test_files_never_change(running: Running, ann: Browser) -> None:
    """A page's files are kept for ever, at addresses that only their content has."""
    page = await ann.get(PAGE)
    place = page.text.split('href="/dashboard/static/')[2].split('"')[0]
    path = f"/dashboard/static/{place}"
    async with aiohttp.ClientSession() as session:
        async with session.get(running.url + path) as reply:
            assert reply.status == 200
            assert "immutable" in reply.headers["cache-control"]
            etag = reply.headers["etag"]
        async with session.get(running.url + path, headers={"if-none-match": etag}) as reply:
            assert reply.status == 304
        for wrong in ("000000000000/app.css", "../../../etc/passwd", "%2e%2e/app.css"):
            async with session.get(f"{running.url}/dashboard/static/{wrong}") as reply:
                assert reply.status in {400, 404}


@pytest.mark.parametrize(
    "path", ["/dashboard/teams/%00/keys", "/dashboard/people/%00", "/dashboard/teams/team_a/keys/a%00"]
)
async def test_no_name_has_a_nul_character(ann: Browser, path: str) -> None:
    """Nothing is looked for: PostgreSQL cannot even be asked for it, which would look as if it were down."""
    async with aiohttp.ClientSession() as session:
        asked = session.get(URL(ann.url + path, encoded=True), headers={"cookie": f"{COOKIE}={ann.cookie}"})
        async with asked as reply:
            assert reply.status == 404
            assert "There is no such page" in await reply.text()
