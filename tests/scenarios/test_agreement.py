"""Two cheap answers in place of a dear one: what the caller sees, and what is booked."""

import asyncio
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import pytest

from accounts.caller import Escalation, TeamSettings
from classifier.prediction import Prediction, TargetPrediction
from cost.errors import BudgetExceeded
from cost.ledger.entries import Entry
from cost.ledger.ledger import MemoryLedger
from providers.catalog import Catalog
from providers.config import TimeoutsConfig
from proxy.batch.line_protocol import LineRequest
from proxy.parse.wires.chat.dialect import CHAT
from proxy.parse.wires.completions.wire import COMPLETIONS
from proxy.parse.wires.messages.wire import MESSAGES
from proxy.parse.wires.responses.wire import RESPONSES
from proxy.parse.wires.wire import Wire
from proxy.plan.pipeline_config import EscalationRules
from proxy.plan.quality_tolerance import Willingness
from proxy.plan.route_plan import NO_LIMIT_NANOUSD, AutoRules
from tests.proxy.plan.test_route_plan import price
from tests.proxy.test_pipeline import Told
from tests.scenarios.test_escalation import closing, headers, text
from tests.scenarios.test_rules import MINTED, House

pytestmark = pytest.mark.usefixtures("leaping_time")

SHORT: dict[str, Any] = {"max_tokens": 5}
AS_OBJECT: dict[str, Any] = {"response_format": {"type": "json_object"}}
CALLED: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "weigh", "parameters": {"type": "object"}}}],
    "tool_choice": "required",
}
CHANCES = (0.8, 0.85, 0.9)


AT_PRICE_1 = 13_000
"""About what an answer costs at a price of 1, in nano-dollars."""


class Worth(NamedTuple):
    """Any minimum comes to this price of one more good answer."""

    nanousd: float

    def of(self, _floor: float | None, _allowed: frozenset[str] | None, _team_id: str = "") -> Willingness:
        return Willingness(self.nanousd, self.nanousd, 0.0 if self.nanousd == NO_LIMIT_NANOUSD else 1.0)


def outlook(adequate: float) -> TargetPrediction:
    return TargetPrediction(adequate=adequate, low=adequate, high=adequate, output_tokens=5, output_tokens_p90=9)


def house(
    *scripts: str,
    escalation: Escalation = "agreement-all",
    chances: Sequence[float] = CHANCES,
    prices: Sequence[int] = (1, 2, 20),
    floor: float | None = 1.0,
    willing: float = math.inf,
    **parts: Any,
) -> House:
    """Two cheap targets, neither good enough for the prompt, and a dear one that is. One more good answer may cost `willing` times as much as
    an answer at a price of 1.
    """
    outlooks = {f"t{index}": outlook(chance) for index, chance in enumerate(chances)}
    prediction = Prediction(complexity=0.5, source="onnx", expected_output_tokens=5, outlooks=outlooks)
    settings = TeamSettings(escalation=escalation, quality_floor=floor)
    walls = House(*scripts, classifier=Told(prediction), settings=settings, **parts)
    config = walls.line.config
    targets = {
        name: msgspec.structs.replace(target, price=price(each, each))
        for (name, target), each in zip(config.catalog.targets.items(), prices, strict=True)
    }
    policy = msgspec.structs.replace(config.policy, reference="t2")
    worth = Worth(min(willing * AT_PRICE_1, NO_LIMIT_NANOUSD))
    walls.line.config = msgspec.structs.replace(
        config, catalog=Catalog(targets=targets), policy=policy, tolerances=worth
    )
    return walls


def asked(walls: House) -> list[str]:
    return [call.deployment.target_id for call in walls.upstream.calls]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("scripts", "fields"),
    [
        (("ok", "ok", "ok"), SHORT),
        (("json", "json", "json"), AS_OBJECT),
        (("tools", "tools", "tools"), CALLED),
    ],
)
async def test_what_two_cheap_answers_agree_on_is_the_answer(
    scripts: tuple[str, ...], fields: dict[str, Any], stream: bool
) -> None:
    """The likelier one's answer is given; both are booked, one has a baseline, and the dear target is not asked."""
    walls = house(*scripts)
    sent = await walls.ask(stream=stream, **fields)
    told = headers(sent)
    assert (told["target"], told["reason"], told["agreement"], told["attempts"]) == ("t1", "agreement", "agreed", "2")
    assert sorted(asked(walls)) == ["t0", "t1"]
    by_target = {entry.target_id: entry for entry in closing(walls)}
    given, other = by_target["t1"], by_target["t0"]
    assert (given.entry, given.flags, given.reason, given.status) == ("settle", (), "agreement", 200)
    assert (given.baseline_nanousd or 0) > 0
    assert (other.entry, other.flags, other.baseline_nanousd) == ("settle", ("confirmed",), None)
    assert float(told["agreement-cost-usd"]) == (other.cost_nanousd or 0) / 1e9
    (outcome,) = walls.told.outcomes
    assert (outcome.target_id, outcome.agreement) == ("t1", "agreed")
    assert outcome.cost_nanousd == (given.cost_nanousd or 0) + (other.cost_nanousd or 0)
    assert walls.upstream.open_streams == 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("wire", "fields"), [(MESSAGES, {"max_tokens": 5}), (RESPONSES, {"max_output_tokens": 16}), (COMPLETIONS, SHORT)]
)
async def test_callers_of_other_wires_are_answered_alike(wire: Wire, fields: dict[str, Any], stream: bool) -> None:
    """In their own dialect, streamed or not."""
    walls = house("ok", "ok", "ok")
    sent = await walls.ask(stream=stream, wire=wire, **fields)
    assert (headers(sent)["target"], headers(sent)["agreement"]) == ("t1", "agreed")
    assert sent[0]["status"] == 200
    assert len(closing(walls)) == 2
    assert walls.upstream.open_streams == 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("scripts", "fields"),
    [
        (("ok", "ok+tokens-2", "ok+tokens-4"), SHORT),
        (("json", "broken-json", "json"), AS_OBJECT),
        (("tools", "ok", "tools"), CALLED),
        (("apology", "apology", "ok+tokens-4"), SHORT),
        (("filtered", "filtered", "ok+tokens-4"), SHORT),
        (("truncated", "truncated", "ok+tokens-4"), SHORT),
    ],
)
async def test_where_they_do_not_agree_the_planned_target_is_asked(
    scripts: tuple[str, ...], fields: dict[str, Any], stream: bool
) -> None:
    """Also where both say nothing in the same words. All three are booked, and one has a baseline."""
    walls = house(*scripts)
    sent = await walls.ask(stream=stream, **fields)
    told = headers(sent)
    assert (told["target"], told["agreement"], told["attempts"]) == ("t2", "disagreed", "3")
    assert told["reason"] != "agreement"
    by_target = {entry.target_id: entry for entry in closing(walls)}
    assert by_target["t2"].flags == ()
    assert (by_target["t2"].baseline_nanousd or 0) > 0
    for name in ("t0", "t1"):
        assert by_target[name].flags[:1] == ("disputed",)
        assert by_target[name].baseline_nanousd is None
    assert len({entry.attempt for entry in closing(walls)}) == 3
    assert walls.upstream.open_streams == 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "broken", ["error-500", "error-400", "error-429", "cut-0", "cut-2", "malformed-2", "hang", "hang-2"]
)
async def test_one_that_fails_or_is_late_hands_on_to_the_planned_target(broken: str, stream: bool) -> None:
    """One cheap answer alone would not keep the minimum, so the dear target is asked; nobody waits beyond the bound for that."""
    walls = house("ok", broken, "ok+tokens-4", first_token_s=5.0)
    rules(walls, agreement_wait_s=2.0)
    began = asyncio.get_running_loop().time()
    sent = await walls.ask(stream=stream, **SHORT)
    assert asyncio.get_running_loop().time() - began < 2.5
    assert (headers(sent)["target"], headers(sent)["agreement"]) == ("t2", "disagreed")
    assert text(sent) == " w0 w1 w2 w3"
    assert walls.upstream.open_streams == 0
    assert len(closing(walls)) == 3


async def test_a_late_second_answer_is_cut_and_booked() -> None:
    """It is waited for as long again as the first took, at least a second; what it used is booked, and it is nobody's fault."""
    walls = house("ok", "hang-2", "ok+tokens-4")
    patient = TimeoutsConfig(first_token_interactive_s=5.0, idle_s=60.0, total_s=60.0)
    walls.line.config = msgspec.structs.replace(walls.line.config, timeouts=patient)
    began = asyncio.get_running_loop().time()
    await walls.ask(stream=True, **SHORT)
    assert 1.0 <= asyncio.get_running_loop().time() - began < 1.5
    (late,) = (entry for entry in closing(walls) if entry.target_id == "t1")
    assert (late.flags[:1], late.status) == (("disputed",), 200)
    assert walls.told.outcomes[0].status == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_what_the_planned_target_cannot_answer_is_answered_with_what_is_there(stream: bool) -> None:
    """An answer that we have is never lost, and the caller is told what it is."""
    walls = house("ok", "ok+tokens-2", "error-500")
    sent = await walls.ask(stream=stream, **SHORT)
    told = headers(sent)
    assert (told["target"], told["reason"], told["agreement"]) == ("t1", "agreement", "unconfirmed")
    assert text(sent) == " w0 w1"
    given = next(entry for entry in closing(walls) if entry.target_id == "t1")
    assert given.flags == ()
    assert (given.baseline_nanousd or 0) > 0


async def test_a_caller_in_a_hurry_is_not_kept_waiting_for_two() -> None:
    """With hardly any time left the planned target is asked at once."""
    walls = house("ok", "ok", "ok")
    sent = await walls.ask(stream=False, headers=[(b"x-request-timeout-ms", b"500")], **SHORT)
    assert "agreement" not in headers(sent)
    assert asked(walls) == ["t2"]


async def test_where_nobody_answers_the_failure_is_told() -> None:
    """As without the two."""
    walls = house("error-500", "error-500", "error-500")
    sent = await walls.ask(stream=False, **SHORT)
    assert sent[0]["status"] == 502
    assert walls.upstream.open_streams == 0


@pytest.mark.parametrize(
    ("scripts", "stream"),
    [
        (("ok+slow-first-token-40ms", "ok+slow-first-token-40ms", "ok"), False),
        (("ok+tokens-10+every-20ms", "ok+tokens-10+every-20ms", "ok"), True),
        (("ok", "ok+slow-first-token-40ms", "ok"), False),
        (("ok", "ok+tokens-2", "ok+slow-first-token-40ms"), False),
    ],
)
async def test_a_caller_that_leaves_settles_everything(scripts: tuple[str, ...], stream: bool) -> None:
    """During the pair or during the planned answer: each attempt closes once, and every upstream is cut."""
    walls = house(*scripts)
    sent = await walls.ask(stream=stream, hang_up_after_s=0.02, **SHORT)
    assert sent == []
    entries = closing(walls)
    assert len(entries) == len(walls.upstream.calls)
    assert all(entry.baseline_nanousd is None for entry in entries)
    assert {entry.flags[0] for entry in entries} <= {"caller_gone", "disputed"}
    assert "caller_gone" in {entry.flags[0] for entry in entries}
    assert walls.upstream.open_streams == 0
    assert walls.line.in_flight == 0


@pytest.mark.parametrize(
    ("escalation", "by_request", "stream", "two"),
    [
        ("agreement", None, False, True),
        ("agreement", None, True, False),
        ("agreement-all", None, True, True),
        ("all", None, False, False),
        ("off", None, False, False),
        ("off", "agreement", True, True),
        ("agreement-all", "false", False, False),
        ("agreement-all", "true", False, False),
    ],
)
async def test_who_opted_in(escalation: Escalation, by_request: str | None, stream: bool, two: bool) -> None:
    """The team's setting, and the request's header before it."""
    walls = house("ok", "ok", "ok", escalation=escalation)
    sent = await walls.ask(stream=stream, escalate=by_request, **SHORT)
    assert ("agreement" in headers(sent)) is two
    assert len(asked(walls)) == (2 if two else 1)


async def test_an_alias_may_say_it_for_its_requests() -> None:
    """It comes before the team's setting, and after the request's."""
    walls = house("ok", "ok", "ok", escalation="off")
    policy = msgspec.structs.replace(walls.line.config.policy, autos={"sure": AutoRules(escalation="agreement")})
    walls.line.config = msgspec.structs.replace(walls.line.config, policy=policy)
    assert headers(await walls.ask(stream=False, model="sure", **SHORT))["agreement"] == "agreed"
    assert "agreement" not in headers(await walls.ask(stream=False, model="sure", escalate="false", **SHORT))
    assert "agreement" not in headers(await walls.ask(stream=False, **SHORT))


@pytest.mark.parametrize(
    ("fields", "changes"),
    [
        ({}, {}),
        ({**SHORT, "n": 2}, {}),
        ({**SHORT, "model": "t2"}, {}),
        (SHORT, {"prices": (10, 11, 20)}),
        (SHORT, {"chances": (0.3, 0.35, 0.9)}),
        (SHORT, {"chances": (0.9, 0.85, 0.9), "prices": (15, 16, 20)}),
        (SHORT, {"chances": (0.8, 0.8, 0.9)}),
    ],
    ids=["prose", "two choices", "a named model", "too dear", "too weak", "cheap is good enough", "one model twice"],
)
async def test_where_it_does_not_pay_one_target_is_asked(fields: dict[str, Any], changes: dict[str, Any]) -> None:
    """What cannot be compared, what its caller named, what would cost more or keep less, and what is one model under two names."""
    walls = house("ok", "ok", "ok", **changes)
    sent = await walls.ask(stream=False, **fields)
    assert "agreement" not in headers(sent)
    assert len(asked(walls)) == 1


CHECKED: dict[str, Any] = {"floor": 0.9, "chances": (0.88, 0.89, 0.97), "willing": 85.0}
"""A good answer may cost so little that the plan chooses the cheapest target, and so much that a second one beside it is worth its price."""


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cheap_choice_is_checked_by_another_cheap_one(stream: bool) -> None:
    """Where they agree nobody else is asked; where they differ, the baseline model."""
    walls = house("ok", "ok", "ok+tokens-4", **CHECKED)
    told = headers(await walls.ask(stream=stream, **SHORT))
    assert (told["target"], told["agreement"]) == ("t1", "agreed")
    walls = house("ok", "ok+tokens-2", "ok+tokens-4", **CHECKED)
    told = headers(await walls.ask(stream=stream, **SHORT))
    assert (told["target"], told["reason"], told["agreement"]) == ("t2", "escalated", "disagreed")
    assert {entry.flags for entry in closing(walls)} == {("disputed",), ()}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("broken", ["error-500", "cut-0", "hang", "hang-2"])
async def test_the_plans_own_choice_is_given_where_nobody_else_answers_in_time(broken: str, stream: bool) -> None:
    """It keeps the minimum by itself, so a check that fails or is late costs no more than its bound."""
    walls = house("ok", broken, "ok+tokens-4", first_token_s=5.0, **CHECKED)
    rules(walls, agreement_wait_s=3.0)
    began = asyncio.get_running_loop().time()
    told = headers(await walls.ask(stream=stream, **SHORT))
    assert asyncio.get_running_loop().time() - began < 1.5
    assert (told["target"], told["agreement"]) == ("t0", "unconfirmed")
    assert "t2" not in asked(walls)
    assert walls.upstream.open_streams == 0
    assert len(closing(walls)) == 2


async def test_where_the_plans_own_choice_says_nothing_the_baseline_model_is_asked() -> None:
    """The other one alone was not asked for its own sake."""
    walls = house("apology", "ok", "ok+tokens-4", **CHECKED)
    assert headers(await walls.ask(stream=False, **SHORT))["target"] == "t2"


async def test_where_the_plans_own_choice_fails_the_plan_goes_on_as_ever() -> None:
    """Nothing speaks for a dear model then: the next candidate is asked."""
    walls = house("error-500", "ok+slow-first-token-20ms", "ok+tokens-4", **CHECKED)
    told = headers(await walls.ask(stream=False, **SHORT))
    assert (told["target"], told["reason"]) == ("t1", "fallback")
    assert "agreement" not in told


async def test_where_the_check_finds_a_difference_and_the_baseline_model_fails_an_answer_is_given() -> None:
    """The likelier one's; nobody else is asked once there is an answer."""
    walls = house("ok", "ok+tokens-2", "error-500", **CHECKED)
    told = headers(await walls.ask(stream=False, **SHORT))
    assert (told["target"], told["agreement"]) == ("t1", "unconfirmed")
    assert sorted(set(asked(walls))) == ["t0", "t1", "t2"]


async def test_a_batch_is_not_asked_of_two_that_may_both_be_wrong() -> None:
    """What nobody opted in for keeps what the plan keeps, whatever two wrong answers say."""
    walls = house("ok", "ok", "ok", escalation="off")
    await walls.ask(stream=False, headers=[(b"x-tier", b"batch")], **SHORT)
    assert asked(walls) == ["t2"]


async def test_a_batch_is_not_checked_unasked() -> None:
    """What nobody opted in for only ever saves."""
    walls = house("ok", "ok", "ok", escalation="off", **CHECKED)
    rules(walls, batch_agreement_from=0.5)
    await walls.ask(stream=False, headers=[(b"x-tier", b"batch")], **SHORT)
    assert asked(walls) == ["t0"]


@pytest.mark.parametrize(("floor", "two"), [(1.0, True), (0.99, True), (0.98, False)])
async def test_lines_of_batches_ask_two_where_the_minimum_is_high(floor: float, two: bool) -> None:
    """Nobody waits for them, and it costs less; the operator says from which minimum on."""
    walls = house("ok", "ok", "ok", escalation="off", floor=floor, chances=(0.88, 0.9, 0.94))
    await walls.ask(stream=False, headers=[(b"x-tier", b"batch")], **SHORT)
    assert len(asked(walls)) == (2 if two else 1)
    rules(walls, batch_agreement_from=None)
    await walls.ask(stream=False, headers=[(b"x-tier", b"batch")], **SHORT)
    assert asked(walls)[-1] == "t2"


def rules(walls: House, **changes: Any) -> None:
    walls.line.config = msgspec.structs.replace(walls.line.config, escalation=EscalationRules(**changes))


async def test_a_line_of_a_batch_is_asked_of_two_without_a_connection() -> None:
    """As batches ask: for a known caller, in the batch tier; all that it cost is told with its answer."""
    walls = house("ok", "ok", "ok", escalation="off", chances=(0.88, 0.9, 0.94))
    caller = await walls.line.parser._directory.authenticate(MINTED.plaintext)
    body = json.dumps({"model": "auto", "messages": [{"role": "user", "content": "hi"}], **SHORT}).encode()
    line = LineRequest(request_id="req_1", caller=caller, endpoint="/v1/chat/completions", body=body, priority=0)
    found = await walls.line.answer(CHAT, line)
    assert found.status == 200
    assert sorted(asked(walls)) == ["t0", "t1"]
    assert found.cost_nanousd == sum(entry.cost_nanousd or 0 for entry in closing(walls))


class Purse(MemoryLedger):
    """Books with money for these targets alone."""

    def __init__(self, *affordable: str) -> None:
        super().__init__()
        self._affordable = affordable

    async def reserve(self, entry: Entry, hold_nanousd: int | None = None) -> bool:
        if entry.target_id not in self._affordable:
            raise BudgetExceeded(
                scope="team",
                scope_id="a",
                period_adjective="monthly",
                limit_nanousd=1,
                resets_at=datetime(2026, 12, 1, tzinfo=UTC),
            )
        return await super().reserve(entry, hold_nanousd)


@pytest.mark.parametrize(
    ("affordable", "target", "agreement"),
    [
        (("t0", "t1"), "t1", "unconfirmed"),
        (("t2",), "t2", "disagreed"),
        (("t0", "t2"), "t2", "disagreed"),
        (("t1", "t2"), "t2", "disagreed"),
    ],
)
async def test_each_attempt_is_held_by_budgets(affordable: tuple[str, ...], target: str, agreement: str) -> None:
    """What there is no money for is not asked, and no two attempts share a number in the books."""
    walls = house("ok", "ok+tokens-2", "ok+tokens-4", books=Purse(*affordable))
    sent = await walls.ask(stream=False, **SHORT)
    assert (headers(sent)["target"], headers(sent)["agreement"]) == (target, agreement)
    reserved = [entry for entry in walls.books.entries if entry.entry == "reserve"]
    assert sorted(entry.target_id for entry in reserved) == sorted(affordable)
    assert len({entry.attempt for entry in reserved}) == len(reserved)
    assert len(closing(walls)) == len(reserved)


@pytest.mark.parametrize("scripts", [("ok", "ok+tokens-2", "ok+tokens-4"), ("ok+tokens-20", "ok+tokens-20", "ok")])
async def test_what_never_agrees_is_left_alone_after_a_while(scripts: tuple[str, ...]) -> None:
    """A team whose cheap answers always differ, or never have the form, pays for no more of them, but for a try now and then."""
    walls = house(*scripts, prices=(4, 5, 20))
    for _ in range(60):
        await walls.ask(stream=False, **SHORT)
    late = [outcome.agreement for outcome in walls.told.outcomes[-30:]]
    assert late.count(None) >= 28
    assert walls.told.outcomes[0].agreement == "disagreed"
