"""Somebody in front of the door: a browser with a cookie jar of its own, and people who may come in."""

import contextlib
from collections.abc import AsyncIterator, Mapping

import aiohttp

from accounts.access import OrganisationRole
from accounts.people.links import OneTimeLinks
from accounts.people.passwords import Passwords
from accounts.people.people import PeopleStore
from accounts.people.person import Person
from accounts.people.sessions import Sessions
from accounts.people.sign_in_config import SignInSection
from cost.times import wall_us
from dashboards.web.cookie import COOKIE
from gateway.configuration.environment import Environment
from gateway.configuration.peppers import peppers
from gateway.configuration.settings import load
from tests.running_gateway import PEPPER, Running
from tests.signed_in import Answer

GOOD = "seven quiet herons"
BETTER = "eight loud pelicans"
SAME_ORIGIN: Mapping[str, str] = {"sec-fetch-site": "same-origin"}


class Guest:
    """Keeps cookies as a browser does, follows no redirects, and sends forms from our own pages unless told otherwise."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self.cookies: dict[str, str] = {}
        self.set: list[str] = []
        """The last answer's Set-Cookie lines."""

    @property
    def is_in(self) -> bool:
        return COOKIE in self.cookies

    async def get(self, path: str, **headers: str) -> Answer:
        async with self._session.get(
            self._url + path, headers={**self._sent(), **headers}, allow_redirects=False
        ) as reply:
            return await self._kept(reply)

    async def post(
        self, path: str, fields: Mapping[str, str] | None = None, headers: Mapping[str, str] = SAME_ORIGIN
    ) -> Answer:
        data = aiohttp.FormData([("form", "sent"), *(fields or {}).items()])
        async with self._session.post(
            self._url + path, data=data, headers={**self._sent(), **headers}, allow_redirects=False
        ) as reply:
            return await self._kept(reply)

    async def sign_in(self, email: str, password: str, then: str = "") -> Answer:
        return await self.post("/dashboard/sign-in", {"email": email, "password": password, "next": then})

    def _sent(self) -> dict[str, str]:
        return {"cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())} if self.cookies else {}

    async def _kept(self, reply: aiohttp.ClientResponse) -> Answer:
        self.set = reply.headers.getall("set-cookie", [])
        for line in self.set:
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies.pop(name, None)
            if value.strip('"'):
                self.cookies[name] = value
        return Answer(reply.status, await reply.text(), reply.headers.copy())


class House:
    """A gateway's people, as whoever runs it sees them."""

    def __init__(self, running: Running) -> None:
        environment = Environment(data_dir=running.config_path.parent, pepper=PEPPER)
        config = load(running.config_path, environment)
        self.section: SignInSection = config.sign_in
        kept = peppers(config, environment)
        self.people = PeopleStore(running.engine)
        passwords = Passwords(min_chars=self.section.password_min_chars)
        self.links = OneTimeLinks(running.engine, self.section, kept, passwords, now_us=wall_us)
        self.sessions = Sessions(running.engine, self.section, kept, now_us=wall_us)

    async def person(
        self, email: str = "ada@acme.test", *, role: OrganisationRole = "", password: str = GOOD, name: str = "Ada"
    ) -> Person:
        """Somebody with a password."""
        person = await self.people.create("default", email, name, role=role)
        return await self.links.use(await self.links.make(person.person_id), password)


@contextlib.asynccontextmanager
async def guest(running: Running) -> AsyncIterator[Guest]:
    """A browser in front of this gateway."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield Guest(session, running.url)
