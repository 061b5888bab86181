"""What the line makes of a close call, and what it hands to those who learn from requests."""

import json
from typing import Any

import msgspec
import pytest

from accounts.caller import Learning, TeamSettings
from classifier.prediction import Outlook, Prediction, Prompt
from providers.scripted import ScriptedUpstream
from proxy.line import portion_bytes
from proxy.outcome import RequestOutcome
from tests.scenarios.test_rules import MINTED, House, said


def outlook(adequate: float, doubt: float = 0.0) -> Outlook:
    return Outlook(
        adequate=adequate,
        low=max(0.0, adequate - doubt),
        high=min(1.0, adequate + doubt),
        output_tokens=100,
        output_tokens_p90=200,
    )


def prediction(cheap: float, *, doubt: float = 0.0, source: str = "onnx") -> Prediction:
    """The dear target is always right; the cheap one with this probability."""
    made: Any = source
    outlooks = {"t0": outlook(cheap, doubt), "t1": outlook(1.0)}
    return Prediction(complexity=0.5, source=made, expected_output_tokens=100, outlooks=outlooks)


class Cascade:
    """A classifier whose two weighers say what they are told to say."""

    def __init__(self, first: Prediction, second: Prediction | None, *, worth: bool = True) -> None:
        self.first = first
        self.second = second
        self.worth = worth
        self.asked = 0
        self.told: list[tuple[str, bool]] = []

    def classify(self, prompt: Prompt, team_id: str = "") -> Prediction:
        return self.first

    def worth_reconsidering(self, team_id: str) -> bool:
        return self.worth

    async def reconsider(self, prompt: Prompt, prediction: Prediction, team_id: str = "") -> Prediction:
        self.asked += 1
        return self.second or prediction

    def reconsidered(self, team_id: str, changed: bool) -> None:
        self.told.append((team_id, changed))


def weighed(cascade: Cascade, **parts: Any) -> House:
    """The dear target is what quality is measured against."""
    house = House("ok", "ok", classifier=cascade, **parts)
    policy = msgspec.structs.replace(house.line.rules.policy, reference="t1")
    house.line.rules = msgspec.structs.replace(house.line.rules, policy=policy)
    return house


async def asked(house: House, **fields: Any) -> tuple[dict[str, str], RequestOutcome]:
    sent = await house.ask(stream=False, **fields)
    return {name.decode(): value.decode() for name, value in sent[0]["headers"]}, house.told.outcomes[-1]


async def test_a_clear_case_is_weighed_once() -> None:
    """The second weigher costs milliseconds, so it is asked only where it could matter."""
    cascade = Cascade(prediction(1.0, doubt=0.01), prediction(0.2, source="encoder"))
    headers, outcome = await asked(weighed(cascade))
    assert (headers["x-weighbridge-target"], headers["x-weighbridge-classifier"]) == ("t0", "onnx")
    assert (cascade.asked, cascade.told, outcome.reconsider_s) == (0, [], None)
    assert outcome.classify_s is not None


async def test_a_close_call_that_turns_out_otherwise_goes_elsewhere() -> None:
    """Planned again with the second opinion; the classifier learns that it was worth it."""
    cascade = Cascade(prediction(0.99, doubt=0.2), prediction(0.5, source="encoder"))
    headers, outcome = await asked(weighed(cascade))
    assert (headers["x-weighbridge-target"], headers["x-weighbridge-classifier"]) == ("t1", "encoder")
    assert cascade.told == [("team_a", True)]
    assert outcome.classifier == "encoder"
    assert outcome.prediction is cascade.second
    assert outcome.classify_s is not None
    assert outcome.reconsider_s is not None
    assert outcome.classify_s >= outcome.reconsider_s


async def test_a_close_call_that_stays_tells_the_classifier_too() -> None:
    """That is how it learns to leave the second weigher out."""
    cascade = Cascade(prediction(0.99, doubt=0.2), prediction(1.0, source="encoder"))
    headers, _ = await asked(weighed(cascade))
    assert headers["x-weighbridge-target"] == "t0"
    assert cascade.told == [("team_a", False)]


async def test_a_second_opinion_that_came_too_late_is_none() -> None:
    """The first's prediction comes back: it stands, and nothing was learned of the second's worth."""
    cascade = Cascade(prediction(0.99, doubt=0.2), None)
    headers, outcome = await asked(weighed(cascade))
    assert (headers["x-weighbridge-target"], headers["x-weighbridge-classifier"]) == ("t0", "onnx")
    assert (cascade.asked, cascade.told) == (1, [])
    assert outcome.reconsider_s is not None


async def test_a_second_opinion_that_is_not_worth_it_is_not_asked() -> None:
    """The classifier has learned that it changes nothing for this team."""
    cascade = Cascade(prediction(0.99, doubt=0.2), prediction(0.2, source="encoder"), worth=False)
    await asked(weighed(cascade))
    assert cascade.asked == 0


@pytest.mark.parametrize(("floor", "chosen"), [(None, "t1"), (0.8, "t0"), (1.0, "t1")])
async def test_a_teams_own_quality_floor_is_kept(floor: float | None, chosen: str) -> None:
    """Without a curve a floor of 80 % lets a prompt lose 20 points; without a floor the gateway's counts."""
    cascade = Cascade(prediction(0.9), None)
    headers, _ = await asked(weighed(cascade, settings=TeamSettings(quality_floor=floor)))
    assert headers["x-weighbridge-target"] == chosen


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
        ("truncated+tokens-2000", {}, None),
        ("cut-3", {}, None),
        ("truncated", {"model": "t0"}, None),
        ("apology", {}, "refused"),
    ],
)
async def test_what_came_back_is_judged_when_the_caller_has_it(
    script: str, fields: dict[str, Any], weakness: str | None
) -> None:
    """Whole answers to `auto` within the bound; the reply itself says nothing of it."""
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


def test_what_is_kept_of_answers_has_a_bound_for_all_together() -> None:
    """Few requests keep what each may; of thousands each keeps its part, so that all keep no more than the bound."""
    assert portion_bytes(1_000_000, 1) == portion_bytes(1_000_000, 200) == 1_000_000
    together = [count * portion_bytes(1_000_000, count) for count in (1, 300, 4_096, 1_000_000)]
    assert max(together) <= 256 * 1024 * 1024
