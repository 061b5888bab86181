"""One target is ill and another is well: nobody notices, whoever asks, and an outage of all of them is not multiplied."""

import json
from collections import Counter
from typing import Any

import pytest

from providers.upstream import UpstreamCall, UpstreamStream
from providers.upstream_faults import error_of_status
from proxy.batch.line_protocol import LineRequest
from proxy.parse.wires.wire import Wire
from testing.scripted.upstream import ScriptedUpstream
from tests.proxy.contexts import ALICE
from tests.scenarios.test_rules import WIRES, House, said


def status_of(sent: list[dict[str, Any]]) -> int:
    return int(sent[0]["status"])


def calls(house: House) -> Counter[str]:
    """Attempts by target."""
    return Counter(each.target_id for outcome in house.told.outcomes for each in outcome.attempts)


ILL = (
    "error-429",
    "error-429+retry-after-20000ms",
    "error-401",
    "error-402",
    "error-404",
    "error-500",
    "error-503",
    "cut-0",
    "malformed-0",
    "hang",
)


@pytest.mark.parametrize(
    ("ill", "stream"), [*((each, True) for each in ILL), *((each, False) for each in ILL if each != "hang")]
)
async def test_one_of_two_targets_is_ill_from_the_first_request_on(ill: str, *, stream: bool) -> None:
    """All 60 are answered by the other one, and the ill one is soon left alone."""
    house = House(ill, "ok")
    for _ in range(60):
        assert status_of(await house.ask(stream=stream)) == 200
    assert calls(house)["t1"] == 60
    assert calls(house)["t0"] <= 6


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@pytest.mark.parametrize("ill", ["error-429", "error-402", "error-500"])
async def test_every_wire_is_answered_by_the_one_that_is_well(ill: str, wire: Wire) -> None:
    """What is ill is known to all of them."""
    house = House(ill, "ok")
    for stream in (True, False) * 10:
        assert status_of(await house.ask(stream=stream, wire=wire)) == 200
    assert calls(house)["t0"] <= 6


@pytest.mark.parametrize("ill", ["error-429+retry-after-20000ms", "error-402", "error-500", "cut-0"])
async def test_lines_of_a_batch_are_answered_by_the_one_that_is_well(ill: str) -> None:
    """They go down the same line, and are told of nothing."""
    house = House(ill, "ok")
    body = json.dumps({"model": "auto", "messages": [{"role": "user", "content": "hi"}]}).encode()
    for number in range(40):
        asked = LineRequest(
            request_id=f"req_{number}", caller=ALICE, endpoint="/v1/chat/completions", body=body, priority=0
        )
        assert (await house.line.answer(WIRES[0], asked)).status == 200
    assert calls(house)["t0"] <= 6


@pytest.mark.parametrize("ill", ["error-429", "error-401", "error-500"])
async def test_deployments_of_one_target_are_ill(ill: str) -> None:
    """However many refuse, the one that is well answers; failures are tried twice at most, and end with their ejection."""
    house = House(ill, siblings=[ill, ill, "ok"])
    answered = [status_of(await house.ask(stream=True)) for _ in range(60)]
    if ill == "error-500":
        # Two attempts a request, until the ill ones are known.
        assert answered[-40:] == [200] * 40
    else:
        assert answered == [200] * 60


async def test_a_prompt_that_is_too_long_goes_to_the_larger_target() -> None:
    """However many there are: it is no outage."""
    house = House("ok", "ok", upstream=TooLongAt("t0"))
    for _ in range(40):
        assert status_of(await house.ask(stream=True)) == 200
    assert calls(house) == {"t0": 40, "t1": 40}


async def test_a_prompt_that_only_the_larger_target_takes_waits_for_its_pace() -> None:
    """It is not told to be too long as long as the other one is set aside: clients would shorten what fits."""
    house = House("ok", "error-429+retry-after-20000ms", upstream=TooLongAt("t0"))
    for _ in range(3):
        sent = await house.ask(stream=True)
        assert status_of(sent) == 429
        assert b"upstream_rate_limited" in said(sent)
    assert calls(house)["t1"] == 1


@pytest.mark.parametrize("scripts", [("error-500",), ("error-500", "error-503", "cut-0"), ("error-429", "error-401")])
async def test_a_total_outage_is_not_multiplied(scripts: tuple[str, ...]) -> None:
    """Of 100 requests few reach a target, whose circuits open."""
    house = House(*scripts)
    statuses = Counter([status_of(await house.ask(stream=True)) for _ in range(100)])
    assert statuses.total() == 100
    assert 200 not in statuses
    assert calls(house).total() <= 40


class TooLongAt:
    """Refuses each prompt at one target as too long for it."""

    def __init__(self, target_id: str) -> None:
        self._target_id = target_id
        self._well = ScriptedUpstream()

    async def open(self, call: UpstreamCall) -> UpstreamStream:
        if call.deployment.target_id != self._target_id:
            return await self._well.open(call)
        told = {"error": {"message": "maximum context length is 8 tokens", "code": "context_length_exceeded"}}
        raise error_of_status(400, json.dumps(told).encode(), {}, deployment_id=call.deployment.deployment_id)

    async def aclose(self) -> None:
        """Holds nothing."""
