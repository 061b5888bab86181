"""Every route, tried by everybody. The routes come from the application: one without a row here fails."""

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import SecretStr
from sqlalchemy import text
from starlette.routing import BaseRoute

from accounts.access import OrganisationRole, Right, TeamRole
from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from accounts.caller import Role
from accounts.people.people import PeopleStore
from accounts.people.sessions import Sessions
from cost.budgets.budget import Budget, limit_from_usd
from cost.budgets.store import BudgetStore
from cost.times import wall_us
from dashboards.web.access import SIGN_IN
from dashboards.web.cookie import COOKIE
from gateway.configuration.environment import Environment
from gateway.configuration.peppers import peppers
from gateway.configuration.settings import load
from gateway.wiring.web_app import web_app
from proxy.admit.limits.limit import Limits
from proxy.admit.limits.rules import Place, Rule
from proxy.admit.limits.store import LimitStore
from tests.dashboards.pages.routes_table import OTHER_ROUTES, RIGHTS, Who
from tests.running_gateway import PEPPER, Running, model, running_gateway

HOME: Final = "default"
OTHER: Final = "acme"
MARK: Final = "Mark-of-the-default"
"""In the name of everything that belongs to one organisation, and must not be read in the other."""

# Who has which right, told once more by hand: the table in accounts/access.py is what is tested here.
_BOTH: Final = frozenset({"admin", "finance", "acme-admin", "acme-finance"})
_ADMINS: Final = frozenset({"admin", "acme-admin"})
PEOPLE_WITH: Final[Mapping[Right, frozenset[str]]] = {
    "signed-in": frozenset(
        {"admin", "finance", "operator", "nobody", "a-admin", "a-member", "b-admin", "acme-admin", "acme-finance"}
    ),
    "team.read": frozenset({"admin", "finance", "a-admin", "a-member"}),
    "team.change": frozenset({"admin", "a-admin"}),
    "organisation.read": _BOTH,
    "organisation.change": _ADMINS,
    "finance.read": _BOTH,
    "books.close": _BOTH,
    "prices.change": frozenset({"admin"}),
    "operations.read": frozenset({"admin", "finance", "operator"}),
    "operations.change": frozenset({"admin", "operator"}),
    "audit.read": _BOTH | {"operator"},
}
KEYS_WITH: Final[Mapping[Right, frozenset[str]]] = {
    "signed-in": frozenset({"a-key", "b-key", "finance", "admin", "acme-key", "acme-finance", "acme-admin"}),
    "team.read": frozenset({"a-key", "finance", "admin"}),
    "team.change": frozenset({"admin"}),
    "organisation.read": _BOTH,
    "organisation.change": _ADMINS,
    "finance.read": _BOTH,
    "books.close": _BOTH,
    "prices.change": frozenset({"admin"}),
    "operations.read": frozenset({"admin", "finance"}),
    "operations.change": frozenset({"admin"}),
    "audit.read": _BOTH,
}

_PEOPLE: Final[Mapping[str, tuple[str, OrganisationRole, Mapping[str, TeamRole]]]] = {
    "admin": (HOME, "admin", {}),
    "finance": (HOME, "finance", {}),
    "operator": (HOME, "operator", {}),
    "nobody": (HOME, "", {}),
    "a-admin": (HOME, "", {"team_a": "admin"}),
    "a-member": (HOME, "", {"team_a": "member"}),
    "b-admin": (HOME, "", {"team_b": "admin"}),
    "acme-admin": (OTHER, "admin", {}),
    "acme-finance": (OTHER, "finance", {}),
}
_KEYS: Final[Mapping[str, tuple[str, Role]]] = {
    "a-key": ("team_a", "member"),
    "b-key": ("team_b", "member"),
    "finance": ("team_b", "finance"),
    "admin": ("team_b", "admin"),
    "acme-key": ("team_x", "member"),
    "acme-finance": ("team_x", "finance"),
    "acme-admin": ("team_x", "admin"),
}
_SAFE: Final = frozenset({"GET", "HEAD"})
_OF_THE_ORGANISATION: Final = frozenset(
    {"team_id", "key_id", "key", "budget_id", "email", "person_id", "number", "scope_id", "request_id", "name"}
)
"""Parameters of paths that name what belongs to an organisation."""
_TABLES: Final = (
    "organisation", "team", "api_key", "person", "team_member", "one_time_link", "audit_entry",
    "budget", "limit_rule", "price_version", "drain_order", "ledger_entry", "verdict",
)  # fmt: skip


class Target(msgspec.Struct, frozen=True):
    """One method of one path."""

    method: str
    path: str
    right: Right | None

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def of_team(self) -> bool:
        return "{team_id}" in self.path

    @property
    def of_pages(self) -> bool:
        return self.path.startswith("/dashboard")


class Tried(msgspec.Struct, frozen=True):
    """What came back."""

    status: int
    text: str
    location: str = ""


class Place_(msgspec.Struct, frozen=True):  # noqa: N801  A place to try routes at, not a limit's.
    """A gateway with two organisations in it."""

    running: Running
    session: aiohttp.ClientSession
    targets: Sequence[Target]
    fills: Mapping[str, str]
    keys: Mapping[str, str]
    sessions: Sessions
    person_ids: Mapping[str, str]
    cookies: dict[str, tuple[str, str]]
    """Of those who stay signed in."""

    def path(self, target: Target) -> str:
        """With what belongs to the default organisation in the place of its parameters."""
        path = target.path.replace(":path}", "}")
        for name, value in self.fills.items():
            path = path.replace(f"{{{name}}}", value)
        assert "{" not in path, f"say what to try for the parameters of {target.path}"
        return path

    async def cookie(self, who: str) -> tuple[str, str]:
        """A new session's cookie, and its secret for forms."""
        cookie = await self.sessions.open(self.person_ids[who], via="password", address="", agent="")
        found = await self.sessions.find(cookie)
        assert found is not None
        return cookie, found.csrf

    async def try_as_person(self, target: Target, who: str) -> Tried:
        """In a browser of theirs, from one of our pages, signed in for this alone."""
        return await self._try_with(target, *await self.cookie(who))

    async def try_as_same_person(self, target: Target, who: str) -> Tried:
        """With one session for all that is refused to them, which costs half as much."""
        if who not in self.cookies:
            self.cookies[who] = await self.cookie(who)
        return await self._try_with(target, *self.cookies[who])

    async def _try_with(self, target: Target, cookie: str, csrf: str) -> Tried:
        headers = {"cookie": f"{COOKIE}={cookie}", "sec-fetch-site": "same-origin"}
        return await self.try_(target, headers, None if target.method in _SAFE else {"csrf": csrf})

    async def try_as_key(self, target: Target, who: str) -> Tried:
        headers = {"authorization": f"Bearer {self.keys[who]}"}
        if target.method not in _SAFE:
            headers["content-type"] = "application/json"
        return await self.try_(target, headers, None)

    async def try_(self, target: Target, headers: Mapping[str, str], form: Mapping[str, str] | None) -> Tried:
        url = self.running.url + self.path(target)
        data = None if form is None else aiohttp.FormData(form)
        async with self.session.request(
            target.method, url, headers=dict(headers), data=data, allow_redirects=False
        ) as reply:
            endless = reply.content_type == "text/event-stream"
            return Tried(reply.status, "" if endless else await reply.text(), reply.headers.get("location", ""))

    async def rows(self) -> dict[str, list[Any]]:
        """Everything that a change could change."""
        found = {}
        async with self.running.engine.connect() as connection:
            for table in _TABLES:
                rows = await connection.execute(text(f"SELECT * FROM {table}"))  # noqa: S608  Our own names.
                # Signing in is dated, and what the other organisation's people do to themselves stands in their own log.
                kept = [{**row, "signed_in_at": None} for row in rows.mappings()]
                if table == "audit_entry":
                    kept = [row for row in kept if row["organisation_id"] == HOME]
                found[table] = sorted(map(repr, kept))
        return found


def routes_of(routes: Sequence[BaseRoute]) -> Iterator[BaseRoute]:
    """Every route, also of routers that were included."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from routes_of(inner.routes)
        else:
            yield route


def rights_of(dependant: Dependant) -> Iterator[Right]:
    """The rights that a route asks for."""
    for each in dependant.dependencies:
        right = getattr(each.call, "right", None)
        if right is not None:
            yield right
        yield from rights_of(each)


def targets_of(routes: Sequence[BaseRoute]) -> list[Target]:
    found = []
    for route in routes_of(routes):
        assert isinstance(route, APIRoute), f"{route} is a route of a kind that nobody checks"
        rights = list(rights_of(route.dependant))
        assert len(rights) <= 1, f"{route.path} asks for two rights"
        found += [Target(method, route.path, rights[0] if rights else None) for method in sorted(route.methods or ())]
    return sorted(found, key=lambda each: (each.path, each.method))


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place_]:
    models = [model("m", [{"kind": "scripted", "upstream_model": "x"}])]
    async with running_gateway(tmp_path, models) as running, aiohttp.ClientSession() as session:
        environment = Environment(data_dir=tmp_path, pepper=SecretStr(PEPPER))
        config = load(running.config_path, environment)
        pepper = peppers(config, environment)
        accounts, people = running.accounts, PeopleStore(running.engine)
        await accounts.create_organisation(OTHER)
        await accounts.create_team("team_b")
        await accounts.create_team("team_x", organisation_id=OTHER)
        keys = {
            who: (await accounts.create_key(team_id, who, pepper[0], role=role)).plaintext
            for who, (team_id, role) in _KEYS.items()
        }
        ids = {}
        for who, (organisation_id, role, teams) in _PEOPLE.items():
            person = await people.create(organisation_id, f"{who}@example.com", who, role=role)
            ids[who] = person.person_id
            for team_id, team_role in teams.items():
                await people.put_member(person.person_id, team_id, team_role, organisation_id=organisation_id)
        fills = await _settled(running, pepper[0])
        yield Place_(
            running=running,
            session=session,
            targets=targets_of(web_app().routes),
            fills=fills,
            keys=keys,
            sessions=Sessions(running.engine, config.sign_in, pepper, now_us=wall_us),
            person_ids=ids,
            cookies={},
        )


async def _settled(running: Running, pepper: Any) -> dict[str, str]:
    """Things of the default organisation, and how paths name them."""
    zoe = await PeopleStore(running.engine).create(HOME, "zoe@example.com", f"Zoe {MARK}")
    minted = await running.accounts.create_key("team_a", f"{MARK} key", pepper)
    await BudgetStore(running.engine).put(
        Budget(
            budget_id="b1",
            organisation_id=HOME,
            scope="key",
            scope_id=minted.key_id,
            period="month",
            kind="soft",
            limit_nanousd=limit_from_usd(Decimal("1234.5")),
        )
    )
    await LimitStore(running.engine).put(Rule(place=Place("team", "team_a"), limits=Limits(requests_per_minute=12_345)))
    actor = Actor(kind="console", actor_id="root", name="root", organisation_id=HOME)
    entry = await AuditLog(running.engine).note(actor, "person.invited", "person", MARK)
    return {
        "team_id": "team_a",
        "response_id": "resp_0",
        "conversation_id": "conv_0",
        "item_id": "msg_0",
        "key_id": minted.key_id,
        "key": minted.key_id,
        "budget_id": "b1",
        "email": "zoe@example.com",
        "person_id": zoe.person_id,
        "number": str(entry.number),
        "scope": "team",
        "scope_id": "team_a",
        "request_id": "req_1",
        "digest": "0" * 64,
        "provider": "none",
        "token": "none",
        "pool": "none",
        "incident_id": "none",
        "measurement_id": "none",
        "name": "none",
        "target": "m",
        "target_id": "m",
        "version": "test",
        "model": "m",
        "day": "2026-01-01",
        "path": "none",
        "end_user": "none",
        "file_id": "none",
        "batch_id": "none",
        "kind": "output",
        "part": "teams",
    }


PUBLIC: Final = frozenset(
    {
        SIGN_IN,
        "/dashboard/sign-in/{provider}",
        "/dashboard/sign-in/{provider}/callback",
        "/dashboard/sign-out",
        "/dashboard/welcome/{token}",
        "/dashboard/static/{digest}/{name:path}",
    }
)
"""The pages that need nobody to be signed in; every other one names a right."""


_ASKED: Final[Mapping[Who, frozenset[str | None]]] = {
    "everybody": frozenset({None}),
    "its own token": frozenset({None}),
    "every key": frozenset({None}),
    "who may act": frozenset({"act"}),
    "admins": frozenset({"team.change", "organisation.change"}),
    "operators": frozenset({"operations.change"}),
}
"""What the other routes ask of a key."""


async def test_every_route_has_a_row(place: Place_) -> None:
    """And asks for the right that the row says; no row is left of a route that is gone."""
    guarded = {each.name: each.right for each in place.targets if _is_guarded(each.path) and each.path not in PUBLIC}
    assert guarded == RIGHTS
    others = {each.name: each.right for each in place.targets if not _is_guarded(each.path)}
    assert others.keys() == OTHER_ROUTES.keys()
    assert {name for name, right in others.items() if right not in _ASKED[OTHER_ROUTES[name]]} == set()
    assert {each.path for each in place.targets} >= PUBLIC


def _is_guarded(path: str) -> bool:
    return path == "/dashboard" or path.startswith(("/dashboard/", "/v1/admin/"))


def _guarded(place: Place_, *, pages: bool) -> list[Target]:
    return [
        each for each in place.targets if each.right is not None and _is_guarded(each.path) and each.of_pages is pages
    ]


async def test_strangers_get_nowhere(place: Place_) -> None:
    """Without a session, with one that ended, as somebody disabled, or with an API key: to the sign-in, or refused."""
    signed_out, _ = await place.cookie("admin")
    await place.sessions.close(signed_out)
    disabled, _ = await place.cookie("acme-admin")
    await PeopleStore(place.running.engine).disable(place.person_ids["acme-admin"], organisation_id=OTHER)
    ways = {
        "nobody": {},
        "nonsense": {"cookie": f"{COOKIE}=nonsense"},
        "signed out": {"cookie": f"{COOKIE}={signed_out}"},
        "disabled": {"cookie": f"{COOKIE}={disabled}"},
        "an API key": {"authorization": f"Bearer {place.keys['admin']}"},
    }
    before = await place.rows()
    for target in _guarded(place, pages=True):
        for way, headers in ways.items():
            tried = await place.try_(target, {"sec-fetch-site": "same-origin", **headers}, None)
            if target.method in _SAFE:
                assert tried.status == 303, (target.name, way, tried)
                assert tried.location.startswith("/dashboard/sign-in?next="), (target.name, way, tried)
            else:
                assert tried.status == 401, (target.name, way, tried)
    assert await place.rows() == before


async def test_keys_that_do_not_hold_open_nothing(place: Place_) -> None:
    """No key, a wrong one, a revoked one, an expired one, and a person's session are all refused by the API."""
    pepper = peppers(
        load(place.running.config_path, Environment(pepper=SecretStr(PEPPER))), Environment(pepper=SecretStr(PEPPER))
    )[0]
    revoked = await place.running.accounts.create_key("team_a", "revoked", pepper, role="admin")
    await place.running.accounts.revoke_key(revoked.key_id)
    expired = await place.running.accounts.create_key(
        "team_a", "expired", pepper, role="admin", expires_at=datetime(2026, 1, 1, tzinfo=UTC)
    )
    cookie, _ = await place.cookie("admin")
    ways = {
        "no key": {},
        "a wrong key": {"authorization": "Bearer wb-nonsense"},
        "a revoked key": {"authorization": f"Bearer {revoked.plaintext}"},
        "an expired key": {"authorization": f"Bearer {expired.plaintext}"},
        "a session": {"cookie": f"{COOKIE}={cookie}", "sec-fetch-site": "same-origin"},
    }
    before = await place.rows()
    for target in place.targets:
        if target.of_pages or OTHER_ROUTES.get(target.name) in {"everybody", "its own token"}:
            continue
        for way, headers in ways.items():
            tried = await place.try_(target, headers, None)
            assert tried.status == 401, (target.name, way, tried)
    assert await place.rows() == before


@pytest.mark.parametrize("pages", [True, False], ids=["pages", "admin API"])
async def test_who_has_not_the_right_is_refused(place: Place_, *, pages: bool) -> None:
    """403, or 404 for a team that one may not even read; and nothing has changed."""
    having = PEOPLE_WITH if pages else KEYS_WITH
    before = await place.rows()
    for target in _guarded(place, pages=pages):
        assert target.right is not None
        for who in sorted(having["signed-in"] - having[target.right]):
            tried = await (place.try_as_same_person if pages else place.try_as_key)(target, who)
            hidden = target.of_team and who not in having["team.read"]
            wanted = 404 if hidden and target.right.startswith("team.") else 403
            assert tried.status in ({wanted, 404} if hidden else {wanted}), (target.name, who, tried)
            assert MARK not in tried.text, (target.name, who)
    assert await place.rows() == before


@pytest.mark.parametrize("pages", [True, False], ids=["pages", "admin API"])
async def test_another_organisation_is_another_world(place: Place_, *, pages: bool) -> None:
    """Who may do everything in one organisation finds nothing of another one's, reads nothing of it and changes nothing."""
    having = PEOPLE_WITH if pages else KEYS_WITH
    before = await place.rows()
    for target in _guarded(place, pages=pages):
        assert target.right is not None
        for who in sorted(having[target.right] & {"acme-admin", "acme-finance", "acme-key"}):
            tried = await (place.try_as_person if pages else place.try_as_key)(target, who)
            assert tried.status < 500, (target.name, who, tried)
            assert MARK not in tried.text, (target.name, who)
            names_something = any(f"{{{name}}}" in target.path for name in _OF_THE_ORGANISATION)
            if names_something and target.method in {"GET", "DELETE"}:
                missing = tried.status == 404 or (tried.status == 400 and "There is no" in tried.text)
                assert missing, (target.name, who, tried)
            if names_something and target.method in {"POST", "PUT"}:
                assert tried.status in {303, 400, 404, 409}, (target.name, who, tried)
    after = await place.rows()
    # Sessions that these people opened for themselves are nobody else's.
    assert after == before


@pytest.mark.parametrize("pages", [True, False], ids=["pages", "admin API"])
async def test_who_has_the_right_is_let_in(place: Place_, *, pages: bool) -> None:
    """Neither sent away nor refused, and nothing breaks, whatever comes of an empty form."""
    having = PEOPLE_WITH if pages else KEYS_WITH
    home = {who for who in having["signed-in"] if not who.startswith("acme")}
    # Reading first: what an empty form changes must not hide what could be read.
    for target in sorted(_guarded(place, pages=pages), key=lambda each: each.method not in _SAFE):
        assert target.right is not None
        for who in sorted(having[target.right] & home):
            tried = await (place.try_as_person if pages else place.try_as_key)(target, who)
            assert tried.status < 500, (target.name, who, tried)
            assert tried.status not in {401, 403}, (target.name, who, tried)
            assert "sign-in" not in tried.location or "end" in target.path, (target.name, who, tried)
            assert "There is no team" not in tried.text, (target.name, who, tried)


async def test_forms_of_other_sites_change_nothing(place: Place_) -> None:
    """Each change wants its own page's secret, and to come from this site."""
    before = await place.rows()
    cookie, csrf = await place.cookie("admin")
    signed_in = {"cookie": f"{COOKIE}={cookie}"}
    ways: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
        "no secret": ({"sec-fetch-site": "same-origin"}, {"name": "x"}),
        "another's secret": ({"sec-fetch-site": "same-origin"}, {"csrf": csrf[::-1]}),
        "another site": ({"sec-fetch-site": "cross-site"}, {"csrf": csrf}),
        "a neighbour": ({"sec-fetch-site": "same-site"}, {"csrf": csrf}),
        "another origin": ({"origin": "https://evil.example"}, {"csrf": csrf}),
    }
    for target in _guarded(place, pages=True):
        if target.method in _SAFE:
            continue
        for way, (headers, form) in ways.items():
            tried = await place.try_(target, {**signed_in, **headers}, form)
            assert tried.status == 403, (target.name, way, tried)
    assert await place.rows() == before


async def test_a_role_that_was_taken_is_gone_at_once(place: Place_) -> None:
    """The session goes on, without the right."""
    people = PeopleStore(place.running.engine)
    targets = [each for each in _guarded(place, pages=True) if each.right != "signed-in"]
    cookie, csrf = await place.cookie("a-admin")
    headers = {"cookie": f"{COOKIE}={cookie}", "sec-fetch-site": "same-origin"}
    await people.remove_member(place.person_ids["a-admin"], "team_a", organisation_id=HOME)
    for target in targets:
        tried = await place.try_(target, headers, None if target.method in _SAFE else {"csrf": csrf})
        assert tried.status == (404 if target.of_team else 403), (target.name, tried)


async def test_the_other_routes_ask_for_the_role_that_their_row_says(place: Place_) -> None:
    """Those beside pages and admin API: every key, or the roles of a row."""
    for target in place.targets:
        row = OTHER_ROUTES.get(target.name)
        if row is None or row in {"everybody", "its own token"}:
            continue
        for who in sorted(KEYS_WITH["signed-in"]):
            tried = await place.try_as_key(target, who)
            assert tried.status < 500, (target.name, who, tried)
            assert (tried.status == 403) is not _may(row, who), (target.name, who, row, tried)
            if who.startswith("acme"):
                assert MARK not in tried.text, (target.name, who)


def _may(row: Who, who: str) -> bool:
    match row:
        case "every key":
            return True
        case "who may act":
            return "finance" not in who
        case "admins":
            return who in {"admin", "acme-admin"}
        case "operators":
            return who == "admin"
    raise AssertionError(row)


async def test_the_public_ones_tell_nothing(place: Place_) -> None:
    """Sign-in, files and refusals of metrics are for everybody, and know no name."""
    with contextlib.suppress(KeyError):
        for target in place.targets:
            if target.path in PUBLIC or OTHER_ROUTES.get(target.name) == "everybody":
                tried = await place.try_(target, {}, None)
                assert tried.status < 500, (target.name, tried)
                assert MARK not in tried.text, target.name
