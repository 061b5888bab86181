"""What the line does with metered requests about money: what hard budgets hold, and which reports are believed."""

import json
from typing import Any, Final

import msgspec
import pytest

from cost.budgets.budget_reservations import BudgetCheck
from cost.prices import Price, UnitPrice
from providers.catalog import Catalog
from providers.metered_replies import decode_metered
from providers.target import Capability
from providers.upstream import UpstreamCall
from providers.wire import Event, Operation
from proxy.parse.wires.metered.audio import TRANSCRIPTIONS
from proxy.parse.wires.metered.images import IMAGES
from proxy.parse.wires.metered.rerank import RERANK
from proxy.parse.wires.metered.speech import SPEECH
from proxy.parse.wires.wire import Wire
from tests.proxy.exchanges import HeardExchange
from tests.proxy.test_pipeline_money import Gate, TightBooks, settled
from tests.scenarios.test_rules import MINTED, House

pytestmark = pytest.mark.usefixtures("leaping_time")

_CENT: Final = 10_000_000
"""Nano-dollars."""
_MILLION: Final = 1_000_000


class Replies:
    """An upstream that answers with one JSON body; its own stream, too."""

    ended = False

    def __init__(self, operation: Operation, reply: dict[str, Any]) -> None:
        self.calls: list[UpstreamCall] = []
        self._operation = operation
        self._left = [json.dumps(reply).encode()]

    async def open(self, call: UpstreamCall) -> "Replies":
        self.calls.append(call)
        return self

    async def read(self) -> list[Event] | None:
        return [decode_metered(self._left.pop(), self._operation, "t0/a")] if self._left else None

    def unread(self) -> list[Event]:
        return []

    async def aclose(self) -> None:
        pass


def house_of(upstream: Replies, capability: Capability, room_nanousd: int, unit: str = "", **facts: Any) -> House:
    """A house under a hard budget with so much left, and one target that costs a cent a unit, or by tokens without one."""
    books = TightBooks(room_nanousd, downgrade=False)
    house = House("ok", upstream=upstream, budgets=Gate(BudgetCheck(hard=True)), books=books)
    price = Price(version="v", input_nanousd=0, output_nanousd=0, cached_input_nanousd=0, cache_write_nanousd=0)
    if unit:
        price = msgspec.structs.replace(price, units=(UnitPrice(unit=unit, nanousd=_CENT * _MILLION),))
    else:
        price = msgspec.structs.replace(price, output_nanousd=_MILLION)
    target = house.line.config.catalog.targets["t0"]
    target = msgspec.structs.replace(target, capabilities=frozenset({capability}), price=price, **facts)
    house.line.config = msgspec.structs.replace(house.line.config, catalog=Catalog(targets={"t0": target}))
    return house


async def ask(house: House, wire: Wire, body: bytes, content_type: bytes = b"application/json") -> tuple[int, Any]:
    headers = [(b"authorization", f"Bearer {MINTED.plaintext}".encode()), (b"content-type", content_type)]
    exchange = HeardExchange(body, headers, path=wire.path)
    await house.line.serve(wire, exchange)
    return exchange.messages[0]["status"], json.loads(exchange.messages[1]["body"])


def picture(**more: Any) -> bytes:
    return json.dumps({"model": "t0", "prompt": "a truck", "n": 3, **more}).encode()


async def test_pictures_are_held_by_their_number() -> None:
    """Three at a cent each need three cents; with less left nothing is asked for."""
    drawn = {"data": [{"b64_json": ""}] * 3}
    for room, status in ((3 * _CENT, 200), (3 * _CENT - 1, 402)):
        upstream = Replies("images", drawn)
        house = house_of(upstream, "images", room, "image")
        assert (await ask(house, IMAGES, picture()))[0] == status
        assert house.books.holds == [3 * _CENT]  # type: ignore[attr-defined]
        assert len(upstream.calls) == (status == 200)


async def test_what_cannot_be_held_is_refused() -> None:
    """An answer that is billed by tokens, of which nobody knows how many there may be; with what to set."""
    drawn = {"data": [{}] * 3, "usage": {"input_tokens": 2, "output_tokens": 300}}
    upstream = Replies("images", drawn)
    house = house_of(upstream, "images", 100 * _CENT, assumed=frozenset({"max_output_tokens"}))
    status, told = await ask(house, IMAGES, picture())
    assert (status, "set the model's `max_output_tokens`" in told["error"]["message"]) == (400, True)
    assert not upstream.calls
    known = house_of(upstream, "images", 100 * _CENT, max_output_tokens=500)
    assert (await ask(known, IMAGES, picture()))[0] == 200
    assert known.books.holds == [3 * 500]  # type: ignore[attr-defined]
    assert (settled(known).output_tokens, settled(known).cost_nanousd) == (300, 300)
    # More than its model can write is disputed.
    tight = house_of(Replies("images", drawn), "images", 100 * _CENT, max_output_tokens=99)
    assert (await ask(tight, IMAGES, picture()))[0] == 200
    assert (settled(tight).output_tokens, settled(tight).flags) == (3 * 99, ("usage_disputed",))
    # Speech tells no tokens, so their price alone holds nothing.
    speaker = house_of(Replies("speech", {}), "speech", 100 * _CENT, max_output_tokens=99)
    status, told = await ask(speaker, SPEECH, json.dumps({"model": "t0", "input": "Hello."}).encode())
    assert (status, "set the model's `prices.units.character`" in told["error"]["message"]) == (400, True)


@pytest.mark.parametrize(
    ("told", "tokens", "flags"),
    [
        ({"usage": {"total_tokens": 12}}, 12, ("usage_missing",)),
        ({"meta": {"billed_units": {"search_units": 1}, "tokens": {"input_tokens": 9, "output_tokens": 0}}}, 9, ()),
        ({"meta": {"billed_units": {"search_units": 1}}}, 0, ()),
    ],
)
async def test_tokens_are_booked_beside_searches(told: dict[str, Any], tokens: int, flags: tuple[str, ...]) -> None:
    """Where only a search has a price, the tokens that the provider tells are in the books, and cost nothing."""
    house = house_of(Replies("rerank", {"results": [], **told}), "rerank", 100 * _CENT, "search")
    asked = json.dumps({"model": "t0", "query": "truck", "documents": ["truck"]}).encode()
    assert (await ask(house, RERANK, asked))[0] == 200
    entry = settled(house)
    assert (entry.input_tokens, entry.unit, entry.quantity_milli, entry.cost_nanousd) == (
        tokens,
        "search",
        1_000,
        _CENT,
    )
    assert entry.flags == flags


async def test_a_report_above_what_is_possible_is_disputed() -> None:
    """Of searches, and of seconds, which a recording's bytes bound."""
    ranked = {"results": [], "meta": {"billed_units": {"search_units": 1_000}}}
    house = house_of(Replies("rerank", ranked), "rerank", 100 * _CENT, "search")
    asked = json.dumps({"model": "t0", "query": "truck", "documents": ["truck"]}).encode()
    assert (await ask(house, RERANK, asked))[0] == 200
    assert (settled(house).quantity_milli, settled(house).cost_nanousd) == (1_000, _CENT)
    assert settled(house).flags == ("usage_disputed",)
    form = (
        b'--x\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        + bytes(1_000)
        + b'\r\n--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nt0\r\n--x--\r\n'
    )
    for seconds, booked in ((1.5, 1_500), (99, 2_000)):
        heard = Replies("transcriptions", {"text": "", "usage": {"type": "duration", "seconds": seconds}})
        house = house_of(heard, "transcription", 2 * _CENT, "second")
        assert (await ask(house, TRANSCRIPTIONS, form, b"multipart/form-data; boundary=x"))[0] == 200
        assert house.books.holds == [2 * _CENT]  # type: ignore[attr-defined]
        assert settled(house).quantity_milli == booked
