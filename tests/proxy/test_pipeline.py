"""What the line makes of a prediction, and what it hands to those who learn from requests."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from accounts.caller import Learning, TeamSettings
from classifier.prediction import Prediction, Prompt, TargetPrediction
from proxy.dispatch.outcome import RequestOutcome
from testing.scripted.upstream import ScriptedUpstream
from tests.scenarios.test_rules import MINTED, House, said

pytestmark = pytest.mark.usefixtures("leaping_time")


def outlook(adequate: float) -> TargetPrediction:
    return TargetPrediction(adequate=adequate, low=adequate, high=adequate, output_tokens=100, output_tokens_p90=200)


def prediction(cheap: float) -> Prediction:
    """The dear target is always right; the cheap one with this probability."""
    outlooks = {"t0": outlook(cheap), "t1": outlook(1.0)}
    return Prediction(complexity=0.5, source="onnx", expected_output_tokens=100, outlooks=outlooks)


class Told:
    """A classifier that says what it is told to say."""

    def __init__(self, said: Prediction) -> None:
        self.said = said
        self.asked = 0

    def classify(self, prompt: Prompt, team_id: str = "", *, learns: bool = True) -> Prediction:
        self.asked += 1
        return self.said


def weighed(classifier: Told, **parts: Any) -> House:
    """The dear target is what quality is measured against."""
    house = House("ok", "ok", classifier=classifier, **parts)
    policy = msgspec.structs.replace(house.line.config.policy, reference="t1")
    house.line.config = msgspec.structs.replace(house.line.config, policy=policy)
    return house


async def asked(house: House, **fields: Any) -> tuple[dict[str, str], RequestOutcome]:
    sent = await house.ask(stream=False, **fields)
    return {name.decode(): value.decode() for name, value in sent[0]["headers"]}, house.told.outcomes[-1]


async def test_a_request_is_weighed_once_and_goes_by_that() -> None:
    """The prediction that chose the target is the one that is told of."""
    classifier = Told(prediction(1.0))
    headers, outcome = await asked(weighed(classifier))
    assert (headers["x-weighbridge-target"], headers["x-weighbridge-classifier"]) == ("t0", "onnx")
    assert classifier.asked == 1
    assert outcome.prediction is classifier.said
    assert outcome.classify_s is not None


@pytest.mark.parametrize("floor", [None, 0.8, 1.0])
async def test_without_a_curve_quality_comes_first(floor: float | None) -> None:
    """Nothing tells what a good answer may cost at a minimum, so the model that is likeliest to be right answers."""
    headers, _ = await asked(weighed(Told(prediction(0.9)), settings=TeamSettings(quality_floor=floor)))
    assert headers["x-weighbridge-target"] == "t1"


@pytest.mark.parametrize(("learning", "learns"), [("off", False), ("numbers", True), ("prompts", True)])
async def test_only_who_may_learn_is_told_of_the_prompt(learning: Learning, learns: bool) -> None:
    """A team that keeps learning off leaves no reference to its words, and its answers are not judged."""
    house = House("truncated", settings=TeamSettings(learning=learning))
    await house.ask(stream=True, messages=[{"role": "user", "content": "canary"}])
    (outcome,) = house.told.outcomes
    assert outcome.prediction is not None
    assert outcome.settings == TeamSettings(learning=learning)
    assert (outcome.prompt == Prompt(text="canary")) is learns
    assert (outcome.request_digest is not None) is learns
    assert (outcome.conversation is not None) is learns
    assert outcome.weakness == ("truncated" if learns else None)


async def test_an_answer_that_its_caller_cut_off_is_not_judged() -> None:
    """Half of a JSON object is no fault of the target."""
    house = House("truncated+tokens-50+every-5ms")
    form: dict[str, Any] = {"response_format": {"type": "json_object"}}
    await house.ask(stream=True, hang_up_after=4, **form)
    (outcome,) = house.told.outcomes
    assert (outcome.status, outcome.weakness) == (499, None)


@pytest.mark.parametrize(
    ("script", "fields", "weakness"),
    [
        ("ok", {}, None),
        ("truncated+tokens-2000", {}, "truncated"),
        ("cut-3", {}, None),
        ("truncated", {"model": "t0"}, None),
        ("apology", {}, "refused"),
    ],
)
async def test_what_came_back_is_judged_when_the_caller_has_it(
    script: str, fields: dict[str, Any], weakness: str | None
) -> None:
    """Whole answers to `auto`; the reply itself says nothing of it."""
    house = House(script)
    sent = await house.ask(stream=True, **fields)
    assert house.told.outcomes[0].weakness == weakness
    assert b"x-weighbridge-weakness" not in dict(sent[0]["headers"])


async def test_a_request_that_was_refused_has_an_outcome_without_any_of_it() -> None:
    """Nothing was weighed, so there is nothing to hand on."""
    house = House("ok")
    sent = await house.ask(stream=False, n=99)
    assert json.loads(said(sent))["error"]["param"] == "n"
    (outcome,) = house.told.outcomes
    assert (outcome.prediction, outcome.prompt, outcome.request_digest) == (None, None, None)
    assert MINTED.plaintext not in repr(outcome)
    assert isinstance(house.upstream, ScriptedUpstream)


@pytest.mark.parametrize(
    ("script", "stream", "act", "ended_by", "status"),
    [
        ("ok", True, None, "answered", 200),
        ("ok", False, None, "answered", 200),
        ("error-400", False, None, "failed", 400),
        ("cut-3", True, None, "failed", 200),
        ("tokens-1000+every-5ms", True, "hang up", "caller_gone", 499),
        ("tokens-1000+every-5ms", True, "cut off", "cut_off", 200),
        ("slow-first-token-500ms", False, "cut off", "cut_off", 503),
        ("tokens-1000+every-5ms", True, "cancel", "cancelled", 200),
    ],
)
@pytest.mark.usefixtures("leaping_time")
async def test_how_a_request_ended_is_known_for_certain(
    script: str, stream: bool, act: str | None, ended_by: str, status: int
) -> None:
    """One value, whatever ended it, and the status that goes with it."""
    house = House(script, first_token_s=1)
    asking = asyncio.create_task(house.ask(stream=stream, hang_up_after_s=0.05 if act == "hang up" else None))
    await asyncio.sleep(0)
    (context,) = house.line._under_way
    if act in {"cut off", "cancel"}:
        await asyncio.sleep(0.05)
        if act == "cancel":
            asking.cancel()
        else:
            house.line.cut_off()
    await asyncio.wait({asking})
    assert asking.cancelled() is (act == "cancel")
    assert context.ended_by == ended_by
    assert house.told.outcomes[0].status == status


async def test_a_request_may_be_stopped_at_any_turn_of_the_loop() -> None:
    """Nothing stays open or unsettled, and what never left for an upstream is booked as that."""
    for turn in range(20):
        house = House("ok")
        asking = [asyncio.create_task(house.ask(stream=False)) for _ in range(3)]
        for _ in range(turn):
            await asyncio.sleep(0)
        asking[1].cancel()
        await asyncio.wait(asking)
        reserved = [entry.request_id for entry in house.books.entries if entry.entry == "reserve"]
        closed = [entry for entry in house.books.entries if entry.entry != "reserve"]
        assert house.upstream.open_streams == 0
        assert sorted(entry.request_id for entry in closed) == sorted(reserved)
        assert sum(entry.entry != "void" for entry in closed) == len(house.upstream.calls)
