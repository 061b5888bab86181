"""Holding a stream back: what was under way when the time was up is neither lost nor doubled."""

import asyncio
import json

import msgspec
import pytest

from providers.errors import StreamCut
from providers.upstream import UpstreamCall, UpstreamStream
from providers.wire import Event, decode_event
from proxy.plan.pipeline_config import EscalationRules
from tests.scenarios.test_rules import House, said

pytestmark = pytest.mark.usefixtures("leaping_time")


class Late:
    """A stream that has an event ready, then waits for a word before each of the others, or before it breaks."""

    ended = False

    def __init__(self, payloads: list[bytes], *, breaks: bool) -> None:
        self.payloads = payloads
        self.breaks = breaks
        self.go_on = asyncio.Event()
        self.waits = asyncio.Event()
        self.closed = False

    async def open(self, call: UpstreamCall) -> UpstreamStream:
        return self

    async def read(self) -> list[Event] | None:
        if len(self.payloads) < 3:
            self.waits.set()
            await self.go_on.wait()
        if not self.payloads:
            if self.breaks:
                raise StreamCut("cut", deployment_id="t0/a")
            return None
        return [decode_event(self.payloads.pop(0), "t0/a")]

    def unread(self) -> list[Event]:
        return []

    async def aclose(self) -> None:
        self.closed = True


def piece(content: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return json.dumps({"choices": [choice]}).encode()


@pytest.mark.parametrize("breaks", [True, False])
@pytest.mark.usefixtures("leaping_time")
async def test_a_read_that_is_under_way_when_the_time_is_up_is_not_lost(breaks: bool) -> None:
    """Its events come in order, and its failure too."""
    late = Late([piece("a"), piece("b"), piece("c", "length")], breaks=breaks)
    house = House("ok", "ok", upstream=late, capabilities=(0.8, 1.0))
    house.line.config = msgspec.structs.replace(house.line.config, escalation=EscalationRules(hold_max_s=0.01))
    asking = asyncio.ensure_future(house.ask(stream=True, escalate="true"))
    await late.waits.wait()
    await asyncio.sleep(0.03)
    late.go_on.set()
    sent = said(await asking)
    assert [sent.count(f'"{each}"'.encode()) for each in "abc"] == [1, 1, 1]
    assert (b'"error"' in sent) is breaks
    assert late.closed
    assert [entry.entry for entry in house.books.entries] == ["reserve", "settle"]


@pytest.mark.usefixtures("leaping_time")
async def test_a_caller_that_leaves_after_the_time_was_up_ends_the_read() -> None:
    """The read that was left to finish is cut with everything else."""
    late = Late([piece("a"), piece("b"), piece("c")], breaks=False)
    house = House("ok", "ok", upstream=late, capabilities=(0.8, 1.0))
    house.line.config = msgspec.structs.replace(house.line.config, escalation=EscalationRules(hold_max_s=0.01))
    await house.ask(stream=True, escalate="true", hang_up_after_s=0.04)
    assert late.closed
    assert house.books.entries[-1].flags[0] == "caller_gone"
    assert house.line.in_flight == 0


@pytest.mark.usefixtures("leaping_time")
async def test_who_is_cancelled_again_and_again_leaves_nothing_open() -> None:
    """The process has to stop, and does not wait for the end of what it has cut off."""
    late = Late([piece("a"), piece("b"), piece("c")], breaks=False)
    house = House("ok", "ok", upstream=late, capabilities=(0.8, 1.0))
    house.line.config = msgspec.structs.replace(house.line.config, escalation=EscalationRules(hold_max_s=0.01))
    asking = asyncio.create_task(house.ask(stream=True, escalate="true"))
    await late.waits.wait()
    await asyncio.sleep(0.03)
    while not asking.done():
        house.line.cut_off()
        await asyncio.sleep(0)
    await asking
    assert late.closed
    assert [entry.entry for entry in house.books.entries] == ["reserve", "settle"]
    assert house.line.in_flight == 0
