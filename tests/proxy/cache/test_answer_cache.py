"""The cache within one line: thousands of random requests of many tenants, and callers that leave at each moment."""

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any, Final

import pytest

from accounts.caller import TeamSettings
from accounts.directory import Directory
from accounts.keys import MintedKey, mint_key
from accounts.store import StoredKey
from cost.ledger.ledger import Books
from providers.upstream import UpstreamCall
from providers.wire import Event, decode_event
from proxy.batch.line_protocol import LineRequest
from proxy.cache.answer_cache import AnswerCache
from proxy.cache.cache_config import CacheSection
from proxy.cache.cache_store import LocalStore
from proxy.parse.headers import RequestHeaders
from proxy.parse.parsed_request import RequestParser
from proxy.parse.wires.chat.dialect import CHAT
from proxy.parse.wires.wire import Wire
from tests.proxy.exchanges import HeardExchange
from tests.scenarios.test_rules import MINTED, PEPPER, WIRES, House, said

pytestmark = pytest.mark.usefixtures("leaping_time")

ON: Final = TeamSettings(cache="on")
REQUESTS: Final = 4_000
TOOL: Final = {"name": "weigh", "description": "Weighs.", "parameters": {"type": "object", "properties": {}}}


class Plain:
    """Seals nothing, but knows whose a record is."""

    def seal(self, team_id: str, name: str, record: bytes) -> bytes:
        return f"{team_id}/{name}\n".encode() + record

    def open(self, team_id: str, name: str, sealed: bytes, max_bytes: int) -> bytes | None:
        place, _, record = sealed.partition(b"\n")
        assert len(record) <= max_bytes
        return record if place == f"{team_id}/{name}".encode() else None


def caches(**section: Any) -> Callable[[Books], AnswerCache]:
    def made(books: Books) -> AnswerCache:
        clock = asyncio.get_running_loop().time
        found = CacheSection(**section)
        store = LocalStore(found.max_bytes, clock)
        return AnswerCache(
            found, store, Plain(), b"s" * 32, books=books, clock=clock, now_us=lambda: round(clock() * 1e6)
        )

    return made


class Serial:
    """An upstream whose every answer has a number of its own."""

    def __init__(self) -> None:
        self.calls = 0

    async def open(self, call: UpstreamCall) -> "Reply":
        self.calls += 1
        return Reply(call, self.calls)


class Reply:
    """One answer: words, or a call where there are tools; a stream in several pieces."""

    def __init__(self, call: UpstreamCall, number: int) -> None:
        head = {"id": f"up-{number}", "created": number, "model": "m"}
        words: dict[str, Any] = {"content": f"<serial {number}>"}
        if call.request.tools:
            function = {"name": "weigh", "arguments": json.dumps({"is": f"<serial {number}>"})}
            words = {"tool_calls": [{"index": 0, "id": f"call_{number}", "type": "function", "function": function}]}
        finish = "tool_calls" if call.request.tools else "stop"
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        if call.request.stream:
            chunks = [
                {**head, "choices": [{"index": 0, "delta": {"role": "assistant", **words}, "finish_reason": None}]},
                {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
                {**head, "choices": [], "usage": usage},
            ]
        else:
            choice = {"index": 0, "message": {"role": "assistant", **words}, "finish_reason": finish}
            chunks = [{**head, "choices": [choice], "usage": usage}]
        self._left = [decode_event(json.dumps(each).encode(), "t0/a") for each in chunks]

    @property
    def ended(self) -> bool:
        return not self._left

    async def read(self) -> list[Event] | None:
        await asyncio.sleep(0)
        return [self._left.pop(0)] if self._left else None

    def unread(self) -> list[Event]:
        return []

    async def aclose(self) -> None:
        pass


class ManyKeys:
    """Two keys of each of some teams, in two organisations."""

    def __init__(self, teams: int) -> None:
        self.minted = [
            (mint_key(PEPPER), f"team_{number}", f"org_{number % 2}") for number in range(teams) for _ in "ab"
        ]
        self._stored = {key.digest: _stored(key, team, owner) for key, team, owner in self.minted}

    async def find_keys(self, digests: list[str]) -> list[StoredKey | None]:
        return [self._stored.get(digest) for digest in digests]


def _stored(key: MintedKey, team_id: str, organisation_id: str) -> StoredKey:
    return StoredKey(
        key_id=key.key_id,
        name="k",
        digest=key.digest,
        pepper_id=PEPPER.id,
        team_id=team_id,
        organisation_id=organisation_id,
        allowed_models=None,
        revoked_at=None,
        expires_at=None,
        settings=ON,
    )


def _random_body(rng: random.Random, wire: Wire) -> dict[str, Any]:
    words = rng.choice(("hi", "hi ", "Hi", "ho", "\u0000hi", '"hi"', "hi\n"))
    fields: dict[str, Any] = {"model": rng.choice(("t0", "t1")), "temperature": rng.choice((0, 0, 0, 0.0, 1))}
    if rng.random() < 0.4:
        fields["stream"] = True
    if rng.random() < 0.2:
        fields["top_p"] = rng.choice((0.5, 0.25))
    match wire.name:
        case "completions":
            return {**fields, "prompt": words, "max_tokens": 60}
        case "responses":
            tools = {"tools": [{"type": "function", **TOOL}]} if rng.random() < 0.3 else {}
            return {**fields, **tools, "input": words, "store": False}
        case "messages":
            own = {"name": "weigh", "input_schema": TOOL["parameters"]}
            tools = {"tools": [own]} if rng.random() < 0.3 else {}
            return {**fields, **tools, "messages": [{"role": "user", "content": words}], "max_tokens": 60}
    tools = {"tools": [{"type": "function", "function": TOOL}]} if rng.random() < 0.3 else {}
    return {**fields, **tools, "messages": [{"role": "user", "content": words}]}


def _serial(sent: list[dict[str, Any]]) -> int:
    text = said(sent).decode()
    found = {int(part.split(">")[0]) for part in text.split("<serial ")[1:]}
    assert len(found) == 1, text
    return found.pop()


async def test_41_no_answer_crosses_from_one_request_to_another_kind() -> None:
    """Tenants by wires by streams by tools by parameters, many at once: each answer was made for this team, wire and body, or for none."""
    rng = random.Random(20261129)
    keys = ManyKeys(6)
    house = House("ok", "ok", upstream=Serial(), cache=caches())  # type: ignore[arg-type]
    house.line.parser = RequestParser(Directory(keys, [PEPPER], asyncio.get_running_loop().time))
    owners: dict[int, tuple[Any, ...]] = {}
    seen = {"hit": 0, "miss": 0, "refresh": 0, "bypass": 0}
    ids: set[bytes] = set()

    async def ask() -> None:
        wire, (key, team_id, owner) = rng.choice(WIRES), rng.choice(keys.minted)
        body = _random_body(rng, wire)
        headers = [(b"authorization", f"Bearer {key.plaintext}".encode())]
        if rng.random() < 0.1:
            headers.append((b"x-weighbridge-cache", rng.choice((b"no-cache", b"no-store", b"ttl=5"))))
        items = list(body.items())
        rng.shuffle(items)
        exchange = HeardExchange(json.dumps(dict(items)).encode(), headers, path=wire.path)
        await house.line.serve(wire, exchange)
        told = dict(exchange.messages[0]["headers"])
        assert exchange.messages[0]["status"] == 200, exchange.messages
        result = told[b"x-weighbridge-cache"].decode()
        seen[result] += 1
        wanted = (owner, team_id, wire.name, json.dumps(body, sort_keys=True))
        number = _serial(exchange.messages)
        if result == "hit":
            assert owners[number] == wanted
        else:
            assert owners.setdefault(number, wanted) == wanted
        assert told[b"x-request-id"] not in ids
        ids.add(told[b"x-request-id"])
        assert told[b"content-type"].startswith(b"text/event-stream") is bool(body.get("stream"))

    for _ in range(REQUESTS // 20):
        await asyncio.gather(*(ask() for _ in range(20)))
    assert seen["hit"] > REQUESTS // 4
    assert seen["miss"] > REQUESTS // 20
    kinds = {kind: sum(entry.entry == kind for entry in house.books.entries) for kind in ("reserve", "settle", "cache")}
    assert kinds == {"reserve": REQUESTS - seen["hit"], "settle": REQUESTS - seen["hit"], "cache": seen["hit"]}
    assert not house.line._cache.flights  # type: ignore[union-attr]


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_50_a_caller_may_leave_at_each_moment(wire: Wire, *, stream: bool) -> None:
    """What had ended at its upstream is kept, and booked as usual; what had not is kept never."""
    kept = []
    for moment in range(12):
        upstream = Serial()
        house = House("ok", upstream=upstream, settings=ON, cache=caches())  # type: ignore[arg-type]
        more: dict[str, Any] = {"model": "t0", "temperature": 0}
        if wire.name == "responses":
            more["store"] = False
        asked = asyncio.ensure_future(house.ask(stream=stream, wire=wire, hang_up_after=moment, **more))
        await asked
        whole = any(entry.entry == "settle" and entry.output_tokens == 3 for entry in house.books.entries)
        again = await house.ask(stream=stream, wire=wire, **more)
        result = dict(again[0]["headers"])[b"x-weighbridge-cache"]
        kept.append(result == b"hit")
        assert result == b"miss" or whole
        assert upstream.calls <= 2
    # At first nothing was there, and in the end all of it.
    assert kept[0] is False
    assert kept[-1] is True
    assert kept == sorted(kept)


async def test_a_stand_in_for_a_spent_budget_is_not_kept() -> None:
    """The named model's answer is another one, once there is money again."""
    house = House("ok", "ok", settings=ON, cache=caches())
    line = house.line
    look = line._admission.look_at_budgets
    line._admission.look_at_budgets = lambda caller, request: look(caller, request)._replace(downgraded=True)  # type: ignore[method-assign]
    for _ in range(2):
        told = dict((await house.ask(stream=False, model="t1", temperature=0))[0]["headers"])
        assert (told[b"x-weighbridge-cache"], told[b"x-weighbridge-downgraded"]) == (b"miss", b"budget")


async def test_a_line_of_a_batch_is_asked_anew() -> None:
    """Nor is anything else that the gateway asks itself, such as a measurement."""
    house = House("ok", settings=ON, cache=caches())
    caller = await house.line.parser.authenticate(_headers())
    body = json.dumps({"model": "t0", "temperature": 0, "messages": [{"role": "user", "content": "hi"}]}).encode()
    for number in range(2):
        asked = LineRequest(request_id=f"req_{number}", caller=caller, endpoint=CHAT.path, body=body, priority=0)
        assert (await house.line.answer(CHAT, asked)).status == 200
    assert [entry.entry for entry in house.books.entries] == ["reserve", "settle"] * 2


def _headers() -> Any:
    return RequestHeaders(authorization=f"Bearer {MINTED.plaintext}")


async def test_an_old_answer_is_not_given() -> None:
    """Neither beyond the configuration's time, nor beyond what its caller takes."""
    house = House("ok", settings=ON, cache=caches(ttl_s=100))

    async def ask(cache: bytes | None = None) -> tuple[bytes, bytes | None]:
        headers = [] if cache is None else [(b"x-weighbridge-cache", cache)]
        told = dict((await house.ask(stream=False, model="t0", temperature=0, headers=headers))[0]["headers"])
        return told[b"x-weighbridge-cache"], told.get(b"age")

    assert await ask() == (b"miss", None)
    await asyncio.sleep(50)
    assert await ask() == (b"hit", b"50")
    assert (await ask(b"ttl=10"))[0] == b"miss"
    assert await ask(b"ttl=500") == (b"hit", b"0")
    await asyncio.sleep(101)
    assert (await ask(b"ttl=500"))[0] == b"miss"
