"""Who is told of the fleet, who drains it, and who may say that it is a part of it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI, Request
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlmodel import SQLModel
from starlette.responses import Response
from starlette.types import Message

from accounts.audit.chain import FIRST
from accounts.audit.log import AuditLog
from accounts.audit.tables import AuditHeadRow
from accounts.caller import Caller
from accounts.errors import AccountsError, UnknownKey
from accounts.key_readings import KeyReadings
from api.fleet.routes import router
from api.live.readers import open_operations
from api.live.workers import WorkersNow
from cost.times import wall_us
from gateway.database import make_engine
from providers.catalog import Catalog
from providers.config import TimeoutsConfig
from proxy.errors import Refused, error_reply
from selfhosted.config import PoolConfig
from selfhosted.discovery.discovery import Discovery
from selfhosted.health.fleet_view import FleetView, WatchedPool
from selfhosted.registry.registry import Registry
from selfhosted.registry.store import RegistryStore
from selfhosted.replica import PoolSnapshot, Replica
from tests.api.limits.test_routes import CALLERS
from tests.selfhosted.registry.registered import pool

TOKEN = "the pool's own"
ONE = "/v1/fleet/pools/own/replicas/one"
THERE = {"url": "http://10.0.0.1:8000", "instance": "i1"}


class House:
    """The routes, with a gateway of just what they need."""

    def __init__(self, engine: AsyncEngine) -> None:
        pools = {
            "own": pool(replicas=[{"name": "fixed", "url": "http://10.9.9.9:8000"}]),
            "closed": pool("closed", registration=None),
        }
        self.store = RegistryStore(engine)
        self.registry = Registry(self.store, list(pools.values()))
        self.registrations: list[str] = []
        self._discoveries = {name: Discovery(each, registry=self.registry) for name, each in pools.items()}
        view = FleetView({name: self._watched(name, each) for name, each in pools.items()}, self.registry, self.store)
        self.gateway = SimpleNamespace(
            rules=lambda: SimpleNamespace(body_timeout_s=5.0, catalog=Catalog(targets={}), timeouts=TimeoutsConfig()),
            boot_id="here",
            finance=SimpleNamespace(reads=asyncio.Semaphore()),
            ready=lambda _target: (),
            refused_parameters=dict,
            directory=SimpleNamespace(lookup_fresh=CALLERS.get, authenticate=self._authenticate),
            metrics=SimpleNamespace(
                registry=SimpleNamespace(count_registration=lambda _pool, result: self.registrations.append(result))
            ),
            operator="default",
            views=SimpleNamespace(
                fleet=view,
                workers=SimpleNamespace(now=_nobody),
                operations=open_operations(engine, contextlib.AsyncExitStack()),
            ),
            identity=SimpleNamespace(audit=AuditLog(engine), readings=KeyReadings(engine, wall_us)),
            config=lambda: SimpleNamespace(sign_in=SimpleNamespace(trusted_proxies=())),
        )
        self._app = FastAPI()
        self._app.include_router(router)
        self._app.add_exception_handler(Exception, _tell)

    def _watched(self, name: str, config: PoolConfig) -> WatchedPool:
        def snapshot() -> PoolSnapshot:
            addresses = self._discoveries[name].addresses
            replicas = tuple(Replica(address=each, state="ready", since=0.0) for each in addresses)
            return PoolSnapshot(pool=name, at=0.0, replicas=replicas)

        # A token without rules for it must open nothing.
        return WatchedPool(config=config, snapshot=snapshot, discovery=self._discoveries[name], token=TOKEN)

    async def _authenticate(self, _key: str) -> Caller:
        raise UnknownKey

    async def ask(
        self, method: str, path: str, who: str = TOKEN, body: Mapping[str, Any] | bytes | None = None, query: str = ""
    ) -> tuple[int, dict[str, Any]]:
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(b"authorization", f"Bearer {who}".encode())] if who else [],
            "state": {"gateway": self.gateway},
        }
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": raw, "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        # What went wrong is raised again after it was told.
        with contextlib.suppress(Refused, AccountsError):
            await self._app(scope, receive, send)
        return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent[1:]))

    async def names(self) -> list[str]:
        """Who is in the pool, as an operator sees it after the next look."""
        await self.registry.refresh()
        _, told = await self.ask("GET", "/v1/fleet/pools/own", "operator")
        return [each["name"] for each in told["replicas"]]


async def _nobody() -> WorkersNow:
    return WorkersNow(())


async def _tell(_request: Request, error: Exception) -> Response:
    told = error_reply(error)
    return Response(told.body, told.status)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    engine = create_async_engine("sqlite+aiosqlite://")
    async with engine.begin() as connection:
        await connection.run_sync(SQLModel.metadata.create_all)
        # As the migration does.
        await connection.execute(insert(AuditHeadRow).values(only=1, number=0, hash=FIRST))
    yield House(engine)
    await engine.dispose()


async def test_an_engine_comes_says_so_again_drains_and_leaves(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """PUT and POST alike; its coming and going is audited, its signs of life are not."""
    status, told = await house.ask("PUT", ONE, body={**THERE, "version": "v2"})
    assert (status, told) == (
        200,
        {
            "object": "fleet.replica",
            "pool": "own",
            "name": "one",
            "url": "http://10.0.0.1:8000",
            "instance": "i1",
            "draining": False,
            "version": "v2",
            "ttl_s": 15.0,
            "again_s": 5.0,
            "state": None,
        },
    )
    assert await house.names() == ["fixed", "one"]
    status, told = await house.ask("POST", ONE, body={**THERE, "draining": True})
    assert (status, told["draining"], told["state"]) == (200, True, "ready")
    assert (await house.ask("DELETE", ONE, query="instance=i2"))[1]["deleted"] is False
    assert (await house.ask("DELETE", ONE, query="instance=i1"))[1]["deleted"] is True
    assert await house.names() == ["fixed"]
    assert house.registrations == ["registered", "renewed", "left"]
    assert len([record for record in caplog.records if record.name == "weighbridge.audit"]) == 2


@pytest.mark.parametrize("who", ["", "wrong", "operator", TOKEN + "x", TOKEN[:-1], "ü"])
async def test_without_the_pools_token_nobody_registers(house: House, who: str) -> None:
    """Nor leaves, nor reads how many there should be; a pool that takes none, or is not there, looks the same."""
    for method, path in (
        ("PUT", ONE),
        ("DELETE", ONE),
        ("GET", "/v1/fleet/pools/own/target"),
    ):
        status, told = await house.ask(method, path, who, THERE if method == "PUT" else None, "instance=i1")
        assert (status, told["error"]["code"]) == (401, "invalid_pool_token")
    for name in ("closed", "ghost"):
        status, told = await house.ask("PUT", f"/v1/fleet/pools/{name}/replicas/one", TOKEN, THERE)
        assert (status, told["error"]["code"]) == (401, "invalid_pool_token")
    assert await house.names() == ["fixed"]


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("one", {**THERE, "url": "http://192.168.0.1:80"}, 403),
        ("one", {**THERE, "url": "http://engine.internal:8000"}, 400),
        ("one", {**THERE, "url": "http://169.254.169.254:80"}, 400),
        ("one", {**THERE, "url": "http://10.0.0.1:8000/v1"}, 400),
        ("one", {"url": THERE["url"]}, 400),
        ("one", {**THERE, "instance": "a b"}, 400),
        ("one", {**THERE, "instance": "a\n"}, 400),
        ("one", {**THERE, "instance": "x" * 65}, 400),
        ("one", {**THERE, "extra": 1}, 400),
        ("one", {**THERE, "draining": "yes"}, 400),
        ("one", b"not json", 400),
        ("one", b"\xff", 400),
        ("one", b"{" + b" " * 5_000 + b"}", 413),
        ("o ne", THERE, 400),
        ("-one", THERE, 400),
        ("x" * 65, THERE, 400),
        ("one\n", THERE, 400),
    ],
)
async def test_what_a_replica_says_is_checked(house: House, name: str, body: Any, status: int) -> None:
    """Its address is a literal one in an allowed network, and everything has its form and length."""
    got, told = await house.ask("PUT", f"/v1/fleet/pools/own/replicas/{name}", body=body)
    assert (got, set(told["error"])) == (status, {"message", "type", "param", "code"})
    assert await house.names() == ["fixed"]


async def test_a_living_name_is_refused_to_another(house: House) -> None:
    """With the time after which it may be free; it is counted."""
    await house.ask("PUT", ONE, body=THERE)
    for other in ({**THERE, "instance": "i2"}, {**THERE, "url": "http://10.0.0.2:8000"}):
        status, told = await house.ask("PUT", ONE, body=other)
        assert (status, told["error"]["code"]) == (409, "replica_name_taken")
    assert house.registrations == ["registered", "taken", "taken"]


async def test_the_fleet_is_the_operators(house: House) -> None:
    """A tenant's admin is refused, and so is the pool's token: it is told of its pool's wish alone."""
    paths = [("GET", "/v1/fleet"), ("GET", "/v1/fleet/pools/own"), ("PUT", f"{ONE}/drain"), ("DELETE", f"{ONE}/drain")]
    for method, path in paths:
        for who, status in (("member", 403), ("finance", 403), ("admin", 403), ("nobody", 401), (TOKEN, 401)):
            assert (await house.ask(method, path, who))[0] == status
    await house.registry.refresh()
    status, told = await house.ask("GET", "/v1/fleet", "operator")
    assert status == 200
    assert [(each["name"], each["state"]) for each in told["data"]] == [("own", "ok"), ("closed", "empty")]
    assert told["registry"] == {"reachable": True, "problem": None}
    assert TOKEN not in json.dumps(told)
    status, told = await house.ask("GET", "/v1/fleet/pools/ghost", "operator")
    assert (status, told["error"]["code"]) == (404, "pool_not_found")


async def test_how_many_there_should_be_is_told(house: House) -> None:
    """Null until somebody decided."""
    await house.registry.refresh()
    status, told = await house.ask("GET", "/v1/fleet/pools/own/target")
    assert (status, told) == (
        200,
        {"object": "fleet.target", "pool": "own", "desired": None, "desired_reason": "", "decided_at": None},
    )
    status, readers = await house.ask("GET", "/v1/fleet/pools/own/target", query="part=prefill")
    assert (status, readers["desired"]) == (200, None)
    assert (await house.ask("GET", "/v1/fleet/pools/own/target", query="part=other"))[0] in (400, 422)


async def test_an_operator_drains_any_replica_and_takes_it_back(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """At once in this process; one that is not there is not drained by a slip of the pen; each is audited once."""
    fixed = "/v1/fleet/pools/own/replicas/fixed/drain"
    for _ in range(2):
        status, told = await house.ask("PUT", fixed, "operator")
        assert (status, told["drained"]) == (200, True)
    _, own = await house.ask("GET", "/v1/fleet/pools/own", "operator")
    assert own["replicas"][0]["drain_ordered"]
    status, told = await house.ask("PUT", "/v1/fleet/pools/own/replicas/ghost/drain", "operator")
    assert (status, told["error"]["code"]) == (404, "replica_not_found")
    for was in (True, False):
        status, told = await house.ask("DELETE", fixed, "operator")
        assert (status, told["drained"], told["was_drained"]) == (200, False, was)
    _, own = await house.ask("GET", "/v1/fleet/pools/own", "operator")
    assert not own["replicas"][0]["drain_ordered"]
    assert len([record for record in caplog.records if record.name == "weighbridge.audit"]) == 2


async def test_a_database_that_is_down_is_told() -> None:
    """Nothing is changed, and the fleet is shown as it was known last."""
    engine = make_engine("postgresql://nobody@127.0.0.1:1/none")
    house = House(engine)
    await house.registry.refresh()
    for method, path, who in (
        ("PUT", ONE, TOKEN),
        ("DELETE", ONE, TOKEN),
        ("PUT", "/v1/fleet/pools/own/replicas/fixed/drain", "operator"),
        ("DELETE", "/v1/fleet/pools/own/replicas/fixed/drain", "operator"),
    ):
        body, query = (THERE, "instance=i1") if who == TOKEN else (None, "")
        status, told = await house.ask(method, path, who, body, query)
        assert (status, told["error"]["code"]) == (503, "fleet_unavailable")
    status, told = await house.ask("GET", "/v1/fleet", "operator")
    assert (status, told["registry"]["reachable"]) == (200, False)
    assert [each["name"] for each in told["data"][0]["replicas"]] == ["fixed"]
    await engine.dispose()


async def test_a_gateway_without_pools_has_none(house: House) -> None:
    """The list is empty, and every pool is unknown."""
    house.gateway.views.fleet = None
    assert (await house.ask("GET", "/v1/fleet", "operator"))[1]["data"] == []
    assert (await house.ask("GET", "/v1/fleet/pools/own", "operator"))[0] == 404
    assert (await house.ask("PUT", ONE, body=THERE))[0] == 401
