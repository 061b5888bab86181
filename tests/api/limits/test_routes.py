"""Who is told which limits and which queues, and what of them."""

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
import pytest
from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import Message

from accounts.caller import Caller, Role
from accounts.errors import AccountsError, UnknownKey
from accounts.key_readings import KeyReadings
from api.limits.routes import router
from api.live.workers import Workers
from cost.times import wall_us
from gateway.database import make_engine
from providers.catalog import Catalog
from proxy.admin.worker_report import QueueReport, WorkerReport
from proxy.admit.limits.book import LimitBook
from proxy.admit.limits.limit import Limit, Limits, Remaining
from proxy.admit.limits.limits_config import LimitsSection
from proxy.admit.limits.rules import ANY_ID, Place, Rule
from proxy.admit.limits.store import LimitStore
from proxy.admit.queues.queue_item import QueueSnapshot, QueueState
from proxy.errors import Refused, error_reply
from proxy.plan.route_plan import Policy
from tests.api.live.workers import worker
from tests.processes import until
from tests.providers.calls import target
from tests.running_gateway import model, running_gateway

SECTION = LimitsSection.model_validate(
    {
        "organisation": {"tokens_per_minute": 900},
        "team": {"requests_per_minute": 100},
        "key": {"concurrency": 4},
        "model": {"requests_per_minute": 50, "request_burst": 5},
    }
)


class Half:
    """Tells that half of each bucket is left, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def peek(self, limits: Sequence[Limit]) -> tuple[Remaining, ...]:
        self.asked += [limit.key for limit in limits]
        return tuple(Remaining(limit=each.burst, remaining=each.burst // 2, reset_s=1.23456) for each in limits)


def one_queue() -> QueueReport:
    """A queue that never moves."""
    figures = {"waiting": 7, "waiting_tokens": 700, "in_flight": 2, "in_flight_tokens": 90, "capacity_tokens": 100}
    return QueueReport(
        name="ours",
        targets=("small",),
        snapshot=QueueSnapshot(
            state=QueueState(name="ours", **figures, predicted_wait_s=float("inf")),
            whole_capacity_tokens=300,
            by_demand=True,
            waiting_interactive=3,
            waiting_batch=4,
            drain_tokens_per_s=12.34567,
        ),
    )


def caller(team_id: str, role: Role, organisation_id: str = "acme", allowed: frozenset[str] | None = None) -> Caller:
    key_id = f"key_{team_id}_{role}"
    return Caller(
        key_id=key_id, key_name="k", team_id=team_id, organisation_id=organisation_id, role=role, allowed_models=allowed
    )


CALLERS = {
    "member": caller("team_x", "member", allowed=frozenset({"small"})),
    "finance": caller("team_y", "finance"),
    "admin": caller("team_y", "admin"),
    "rival": caller("team_r", "member", "rival"),
    "operator": caller("team_o", "admin", "default"),
}


class House:
    """The routes, with a gateway of just what they need."""

    def __init__(self) -> None:
        self.limiter = Half()
        self.book = LimitBook(SECTION, ["big", "small", "fast"])
        self.book.replace(
            Rule(place=place, limits=Limits(concurrency=1))
            for place in (
                Place("team", "team_x", "small"),
                Place("team", "team_r", "small"),
                Place("key", "key_team_y_admin"),
                Place("model", ANY_ID, "small"),
            )
        )
        rules = SimpleNamespace(
            policy=Policy(aliases={"fast": ("small", "big"), "dear": ("big",)}),
            catalog=Catalog(
                targets={name: msgspec.structs.replace(target("main"), target_id=name) for name in ("big", "small")}
            ),
        )
        self._gateway = SimpleNamespace(
            rules=lambda: rules,
            directory=SimpleNamespace(lookup_fresh=CALLERS.get, authenticate=self._authenticate),
            limit_book=self.book,
            operator="default",
            views=SimpleNamespace(workers=Workers(self._reports, self._peeked)),
            identity=SimpleNamespace(readings=KeyReadings(make_engine("sqlite://"), wall_us)),
        )
        self._app = FastAPI()
        self._app.include_router(router)
        self._app.add_exception_handler(Exception, _tell)

    async def _reports(self) -> list[WorkerReport]:
        return [worker(limits_mode="shared", live=3, queues=(one_queue(),))]

    async def _peeked(self, limits: tuple[Limit, ...]) -> list[tuple[Remaining, ...]]:
        return [await self.limiter.peek(limits)]

    async def _authenticate(self, _key: str) -> Caller:
        raise UnknownKey

    async def get(self, who: str, path: str, query: str = "") -> tuple[int, Mapping[str, Any]]:
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(b"authorization", f"Bearer {who}".encode())],
            "state": {"gateway": self._gateway},
        }
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        # What went wrong is raised again after it was told.
        with contextlib.suppress(Refused, AccountsError):
            await self._app(scope, receive, send)
        return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent[1:]))


async def _tell(_request: Request, error: Exception) -> Response:
    told = error_reply(error)
    return Response(told.body, told.status)


def placed(body: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return [(each["scope"], each["scope_id"], each["model"], each["kind"], each["remaining"]) for each in body["data"]]


async def test_a_caller_is_told_its_own_limits() -> None:
    """Over all models unless it names one, with what remains of those that are its team's alone."""
    house = House()
    status, body = await house.get("member", "/v1/limits")
    assert (status, body["model"], body["mode"], body["live_replicas"]) == (200, None, "shared", 3)
    own = [
        ("organisation", "acme", None, "tokens", None),
        ("team", "team_x", None, "requests", 50),
        ("key", "key_team_x_member", None, "concurrency", 2),
    ]
    assert placed(body) == own
    assert body["data"][1] == {
        "object": "limit",
        "scope": "team",
        "scope_id": "team_x",
        "model": None,
        "kind": "requests",
        "per_minute": 100,
        "burst": 100,
        "remaining": 50,
        "limit": 100,
        "reset_s": 1.235,
    }
    _, body = await house.get("member", "/v1/limits", "model=small")
    assert placed(body) == [
        *own,
        ("model", "small", "small", "requests", None),
        ("model", "small", "small", "concurrency", None),
        ("team", "team_x", "small", "concurrency", 0),
    ]


async def test_what_others_use_is_told_to_those_who_look_after_it() -> None:
    """An organisation's use to its finance and admins, a model's to the operator's admins; nobody else is even asked for."""
    house = House()
    seen = {}
    for who in CALLERS:
        house.limiter.asked.clear()
        _, body = await house.get(who, "/v1/limits", "model=small")
        told = {each["scope"] for each in body["data"] if each["remaining"] is not None}
        assert told == {key.partition("/")[0] for key in house.limiter.asked}
        seen[who] = told & {"organisation", "model"}
    assert seen == {
        "member": set(),
        "finance": {"organisation"},
        "admin": {"organisation"},
        "rival": set(),
        "operator": {"organisation", "model"},
    }


async def test_nobody_is_told_of_another_tenant() -> None:
    """Neither ids nor rules of another organisation, team or key stand in any answer."""
    house = House()
    for who, each in CALLERS.items():
        for query in ("", "model=small", "model=auto"):
            _, body = await house.get(who, "/v1/limits", query)
            named = {each["scope_id"] for each in body["data"] if each["scope"] != "model"}
            assert named <= {each.organisation_id, each.team_id, each.key_id}


@pytest.mark.parametrize(
    ("who", "model", "there"),
    [
        ("member", "auto", True),
        ("member", "small", True),
        ("member", "fast", True),
        ("member", "big", False),
        ("member", "dear", False),
        ("finance", "big", True),
        ("finance", "dear", True),
        ("finance", "ghost", False),
        ("finance", "%F0%9F%92%A3" * 100, False),
    ],
)
async def test_what_a_team_may_not_use_is_not_there(who: str, model: str, there: bool) -> None:
    """It looks like what does not exist."""
    status, body = await House().get(who, "/v1/limits", f"model={model}")
    assert status == (200 if there else 404)
    if not there:
        assert body["error"]["code"] == "model_not_found"


async def test_without_a_key_nothing_is_told() -> None:
    """401 for both."""
    for path in ("/v1/limits", "/v1/queues"):
        assert (await House().get("nobody", path))[0] == 401


async def test_queues_are_the_operators() -> None:
    """They stand for all organisations: a tenant's admin is refused, a member too."""
    house = House()
    for who, code in (
        ("member", "admin_only"),
        ("finance", "admin_only"),
        ("rival", "admin_only"),
        ("admin", "operator_only"),
    ):
        status, body = await house.get(who, "/v1/queues")
        assert (status, body["error"]["code"]) == (403, code)
    status, body = await house.get("operator", "/v1/queues")
    assert status == 200
    (queue,) = body["data"]
    assert queue == {
        "object": "queue",
        "name": "ours",
        "waiting": 7,
        "waiting_by_tier": {"interactive": 3, "batch": 4},
        "waiting_tokens": 700,
        "in_flight": 2,
        "in_flight_tokens": 90,
        "capacity_tokens": 100,
        "whole_capacity_tokens": 300,
        "divided": "by demand",
        "drain_tokens_per_s": 12.346,
        "predicted_wait_s": None,
        "targets": ["small"],
    }
    assert body["live_replicas"] == 3


async def test_a_running_gateway_keeps_what_is_set(tmp_path: Path) -> None:
    """A rule holds without a restart, for its team alone; what remains is told, and asking takes nothing."""
    scripted = [{"name": "a", "kind": "scripted", "upstream_model": "ok"}]
    limits = {"poll_s": 0.1, "key": {"requests_per_minute": 1_000}}
    async with (
        running_gateway(tmp_path, [model("only", scripted)], limits=limits) as there,
        aiohttp.ClientSession(headers={"authorization": f"Bearer {there.key}"}) as session,
    ):

        async def told(least: int = 0, most: int = 9) -> list[dict[str, Any]]:
            """The limits, once there are so many."""
            async with asyncio.timeout(20):
                while True:
                    async with session.get(f"{there.url}/v1/limits", params={"model": "only"}) as answer:
                        body = await answer.json()
                    assert (answer.status, body["mode"], body["live_replicas"]) == (200, "process", 1)
                    data: list[dict[str, Any]] = body["data"]
                    if least <= len(data) <= most:
                        return data
                    await asyncio.sleep(0.02)

        async def ask() -> int:
            body = {"model": "only", "messages": [{"role": "user", "content": "hello"}]}
            async with session.post(f"{there.url}/v1/chat/completions", json=body) as answer:
                return answer.status

        for _ in range(3):
            assert [(each["scope"], each["remaining"]) for each in await told()] == [("key", 1_000)]
        rule = Rule(place=Place("team", "team_a", "only"), limits=Limits(requests_per_minute=1, request_burst=2))
        await LimitStore(there.engine).put(rule)
        await told(least=2)
        # The worker looks for itself.
        await until(lambda: bool(there.live.gate.limit_book.at(rule.place)))
        assert [await ask() for _ in range(3)] == [200, 200, 429]
        (_, on_model) = await told()
        expected = {"scope": "team", "model": "only", "per_minute": 1, "burst": 2, "remaining": 0, "limit": 2}
        assert {name: on_model[name] for name in expected} == expected
        await LimitStore(there.engine).remove(rule.place)
        await told(most=1)
        await until(lambda: not there.live.gate.limit_book.at(rule.place))
        assert await ask() == 200
        async with session.get(f"{there.url}/v1/queues") as answer:
            assert answer.status == 403
