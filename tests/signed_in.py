"""Somebody who is signed in to a gateway's pages, as a browser would be, but without one."""

import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
from pydantic import SecretStr

from accounts.access import OrganisationRole, TeamRole
from accounts.people.people import PeopleStore
from accounts.people.sessions import Sessions
from accounts.people.sign_in_config import SignInSection
from accounts.store import DEFAULT_ORGANISATION
from cost.times import wall_us
from dashboards.web.cookie import COOKIE
from gateway.configuration.environment import Environment
from gateway.configuration.peppers import peppers
from gateway.configuration.settings import load
from tests.running_gateway import PEPPER, Running

_CSRF = re.compile(r'name="csrf" value="([^"]+)"')


class Browser:
    """Sends the cookie and what browsers tell of where a request comes from. Redirects are not followed."""

    def __init__(self, session: aiohttp.ClientSession, url: str, cookie: str, csrf: str) -> None:
        self._session = session
        self.url = url
        self.cookie = cookie
        self.csrf = csrf

    async def get(self, path: str, **headers: str) -> "Answer":
        """A page."""
        sent = {"cookie": f"{COOKIE}={self.cookie}", **headers}
        async with self._session.get(self.url + path, headers=sent, allow_redirects=False) as reply:
            return Answer(reply.status, await reply.text(), reply.headers.copy())

    async def post(self, path: str, fields: Mapping[str, Any] | None = None, **headers: str) -> "Answer":
        """A form of ours, sent as our pages do. A list is a field with several values."""
        return await self.send(
            path, {"csrf": self.csrf, **(fields or {})}, {"sec-fetch-site": "same-origin", **headers}
        )

    async def send(self, path: str, fields: Mapping[str, Any], headers: Mapping[str, str]) -> "Answer":
        """Just this, with the cookie."""
        sent = {"cookie": f"{COOKIE}={self.cookie}", **headers}
        pairs = [
            (name, str(each))
            for name, value in fields.items()
            for each in (value if isinstance(value, (list, tuple)) else [value])
        ]
        data = aiohttp.FormData(pairs)
        async with self._session.post(self.url + path, headers=sent, data=data, allow_redirects=False) as reply:
            return Answer(reply.status, await reply.text(), reply.headers.copy())


class Answer:
    """A page, or where it leads."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str]) -> None:
        self.status = status
        self.text = text
        self.headers = headers

    @property
    def location(self) -> str:
        """Where it redirects to."""
        return self.headers.get("location", "")


async def cookie_of(
    running: Running,
    email: str = "ann@example.com",
    *,
    role: OrganisationRole = "",
    teams: Mapping[str, TeamRole] | None = None,
    organisation_id: str = DEFAULT_ORGANISATION,
    name: str = "Ann",
) -> str:
    """The cookie of somebody with this role, who is made when need be."""
    environment = Environment(data_dir=running.config_path.parent, pepper=SecretStr(PEPPER))
    config = load(running.config_path, environment)
    people = PeopleStore(running.engine)
    person = await people.find(email) or await people.create(organisation_id, email, name, role=role)
    for team_id, team_role in (teams or {}).items():
        await people.put_member(person.person_id, team_id, team_role, organisation_id=organisation_id)
    section: SignInSection = config.sign_in
    sessions = Sessions(running.engine, section, peppers(config, environment), now_us=wall_us)
    return await sessions.open(person.person_id, via="password", address="127.0.0.1", agent="tests")


@contextlib.asynccontextmanager
async def signed_in(
    running: Running,
    email: str = "ann@example.com",
    *,
    role: OrganisationRole = "",
    teams: Mapping[str, TeamRole] | None = None,
    organisation_id: str = DEFAULT_ORGANISATION,
) -> AsyncIterator[Browser]:
    """Somebody at the pages of this gateway."""
    cookie = await cookie_of(running, email, role=role, teams=teams, organisation_id=organisation_id)
    async with aiohttp.ClientSession() as session:
        browser = Browser(session, running.url, cookie, "")
        page = await browser.get("/dashboard/batches")
        found = _CSRF.search(page.text)
        assert found is not None, f"{page.status}: {page.text[:500]}"
        browser.csrf = found[1]
        yield browser
