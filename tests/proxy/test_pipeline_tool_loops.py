"""Tool loops on the line: what a turn's answers leave behind, and what the next step makes of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from classifier.prediction import Prediction, Prompt
from proxy.plan.route_plan import Policy
from tests.proxy.plan.test_route_plan import hard
from tests.proxy.plan.test_tool_loop import FAILED, step
from tests.scenarios.test_rules import House

pytestmark = pytest.mark.usefixtures("leaping_time")

TOOLS: Sequence[Mapping[str, Any]] = [{"type": "function", "function": {"name": "read", "parameters": {}}}]
ASKED: Sequence[Mapping[str, Any]] = [{"role": "user", "content": "mend the test"}]


class Swaying:
    """A classifier whose word is given for each request."""

    def __init__(self, *complexities: float) -> None:
        self.complexities = list(complexities)

    def classify(self, prompt: Prompt, team_id: str = "", *, learns: bool = True) -> Prediction:
        del prompt, team_id
        return hard(self.complexities.pop(0) if len(self.complexities) > 1 else self.complexities[0])


def works(count: int) -> list[dict[str, Any]]:
    return [message for number in range(count) for message in step("read", f"text {number}", path=number)]


def fails(count: int) -> list[dict[str, Any]]:
    return [message for number in range(count) for message in step("read", FAILED, path=number)]


async def asked(house: House, since: Sequence[Mapping[str, Any]] = (), **more: Any) -> tuple[str, str, str]:
    """Target, reason and struggle by the reply's headers."""
    sent = await house.ask(stream=False, messages=[*ASKED, *since], tools=TOOLS, **more)
    headers = dict(sent[0]["headers"])
    names = (b"x-weighbridge-target", b"x-weighbridge-reason", b"x-weighbridge-struggle")
    target, reason, struggle = (headers.get(name, b"").decode() for name in names)
    return target, reason, struggle


def a_house(*scripts: str, complexities: Sequence[float] = (0.2,), **policy: Any) -> House:
    house = House(*scripts, capabilities=(0.5, 0.7, 1.0), classifier=Swaying(*complexities))
    house.line.config = msgspec.structs.replace(house.line.config, policy=Policy(**policy))
    return house


async def test_a_loop_stays_though_the_classifier_sways() -> None:
    """A turn that began as a hard one stays with the better target; where staying is off it goes to and fro."""
    complexities = (0.6, 0.2, 0.6, 0.2)
    for stay, expected in ((True, ["t1", "t1", "t1", "t1"]), (False, ["t1", "t0", "t1", "t0"])):
        house = a_house("ok", "ok", "ok", complexities=complexities, stay_in_turn=stay)
        assert [(await asked(house, works(count)))[0] for count in range(4)] == expected


async def test_a_new_turn_is_planned_anew() -> None:
    """It is what the user asked now that counts."""
    house = a_house("ok", "ok", "ok", complexities=(0.6, 0.2))
    assert (await asked(house))[0] == "t1"
    assert (await asked(house, [*works(1), *ASKED])) == ("t0", "cheapest-capable", "")


async def test_struggle_raises_the_loop_by_one_step_and_it_stays_there() -> None:
    """Within the turn, and the next turn begins there too. The log says why."""
    house = a_house("ok", "ok", "ok")
    found = [await asked(house, fails(count)) for count in range(8)]
    assert found == [
        *[("t0", "cheapest-capable", "")] * 3,
        *[("t1", "struggle", "repeated-errors")] * 3,
        *[("t2", "struggle", "repeated-errors")] * 2,
    ]
    assert (house.told.outcomes[-1].loop_steps, house.told.outcomes[-1].struggle) == (7, "repeated-errors")
    assert (await asked(house, [*fails(3), *ASKED]))[:2] == ("t1", "struggle")
    assert {entry.reason for entry in house.books.entries} == {"cheapest-capable", "struggle"}


async def test_a_process_that_never_saw_the_turn_decides_the_same() -> None:
    """Raises are read from the messages, and prices are compared as at the turn's beginning."""
    first, other = a_house("ok", "ok", "ok"), a_house("ok", "ok", "ok")
    for count in range(8):
        assert (await asked(first, fails(count)))[:2] == (await asked(other, fails(count)))[:2]
        other = a_house("ok", "ok", "ok")


async def test_who_names_a_model_gets_it() -> None:
    """Its loop is not even read."""
    house = a_house("ok", "ok", "ok")
    assert await asked(house, fails(6), model="t0") == ("t0", "named", "")


async def test_what_stood_in_for_a_better_target_is_not_where_the_loop_stays() -> None:
    """The raise is tried again with the next step; without a raise the loop stays with whoever answered."""
    house = a_house("ok", "error-500", "error-500")
    assert await asked(house) == ("t0", "cheapest-capable", "")
    assert (await asked(house, fails(3)))[:2] == ("t0", "fallback")
    turns = house.line._router._affinity._turns
    ((_, choice),) = turns.values()
    assert choice.targets == {0: "t0"}
    stays = a_house("error-500", "ok", "ok")
    assert (await asked(stays))[:2] == ("t1", "fallback")
    ((_, choice),) = stays.line._router._affinity._turns.values()
    assert choice.targets == {0: "t1"}


async def test_an_escalation_counts_as_one_raise() -> None:
    """The same weakness does not lift the loop twice: it stays with the better target until it struggles once more."""
    house = a_house("truncated", "ok", "ok")
    assert (await asked(house, escalate="true"))[:2] == ("t1", "escalated")
    assert (await asked(house, works(1)))[:2] == ("t1", "same-turn")
    assert (await asked(house, fails(3)))[:2] == ("t1", "struggle")
    assert (await asked(house, fails(6)))[:2] == ("t2", "struggle")


async def test_requests_without_tools_leave_nothing_behind() -> None:
    """No loop can follow them."""
    house = a_house("ok", "ok", "ok")
    await house.ask(stream=False)
    assert not house.line._router._affinity._turns
