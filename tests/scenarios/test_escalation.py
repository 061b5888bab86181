"""Weak answers that are asked again of a better target: what the caller sees, and what is booked."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from accounts.caller import Escalation, TeamSettings
from cost.ledger.entries import Entry
from proxy.plan.pipeline_config import EscalationRules
from proxy.plan.session_affinity import CACHE_MIN_TOKENS
from tests.scenarios.test_rules import House, said

pytestmark = pytest.mark.usefixtures("leaping_time")

AS_OBJECT = {"response_format": {"type": "json_object"}}
NUMBER = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
AS_NUMBER = {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": NUMBER}}}
WEIGH = {"tools": [{"type": "function", "function": {"name": "weigh", "parameters": {"type": "object"}}}]}


def house(*scripts: str, escalation: Escalation = "all", **parts: Any) -> House:
    """Targets that grow dearer and more capable."""
    capabilities = [0.8 + index / 10 for index in range(len(scripts))]
    return House(*scripts, capabilities=capabilities, settings=TeamSettings(escalation=escalation), **parts)


def rules(house: House, **changes: Any) -> None:
    escalation = EscalationRules(**changes)
    house.line.config = msgspec.structs.replace(house.line.config, escalation=escalation)


def headers(sent: Sequence[dict[str, Any]]) -> dict[str, str]:
    named = ((name.decode(), value.decode()) for name, value in sent[0]["headers"])
    return {name.removeprefix("x-weighbridge-"): value for name, value in named}


def text(sent: Sequence[dict[str, Any]]) -> str:
    """What was said, streamed or not."""
    if "text/event-stream" not in headers(sent)["content-type"]:
        return json.loads(said(sent))["choices"][0]["message"]["content"] or ""
    events = [each.removeprefix("data: ") for each in said(sent).decode().split("\n\n") if each]
    assert events[-1] == "[DONE]"
    deltas = [choice["delta"] for event in events[:-1] for choice in json.loads(event)["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def closing(house: House) -> list[Entry]:
    return [entry for entry in house.books.entries if entry.entry != "reserve"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("script", "fields", "weakness"),
    [
        ("truncated", {}, "truncated"),
        ("refusal", {}, "refused"),
        ("apology", {}, "refused"),
        ("filtered", {}, "refused"),
        ("broken-json", AS_OBJECT, "invalid-json"),
        ("odd-json", AS_NUMBER, "schema-mismatch"),
        ("broken-tools", WEIGH, "malformed-tool-arguments"),
        ("logprob-300", {}, "low-logprob"),
    ],
)
async def test_a_weak_answer_is_replaced_and_both_are_booked(
    script: str, fields: dict[str, Any], weakness: str, stream: bool
) -> None:
    """The caller sees the better answer alone, and why; the books have both, and one baseline."""
    better = "json" if "json" in script else "tools" if "tools" in script else "ok"
    walls = house(script, better)
    rules(walls, min_mean_logprob=-2.0)
    sent = await walls.ask(stream=stream, **fields)
    told = headers(sent)
    assert (told["target"], told["reason"]) == ("t1", "escalated")
    assert (told["escalated-from"], told["weakness"], told["attempts"]) == ("t0", weakness, "2")
    assert b'"t0"' not in said(sent)
    assert text(sent) == {"ok": " w0 w1 w2", "json": '{"answer": 42}', "tools": ""}[better]
    first, second = closing(walls)
    assert (first.target_id, first.entry, first.flags, first.status) == ("t0", "settle", ("escalated",), 200)
    assert (first.cost_nanousd or 0) > 0
    assert first.baseline_nanousd is None
    assert (second.target_id, second.reason, second.flags, second.status) == ("t1", "escalated", (), 200)
    assert (second.baseline_nanousd or 0) > 0
    assert float(told["escalation-cost-usd"]) == (first.cost_nanousd or 0) / 1e9
    (outcome,) = walls.told.outcomes
    assert (outcome.target_id, outcome.escalated_from, outcome.weakness) == ("t1", "t0", weakness)
    assert outcome.cost_nanousd == (first.cost_nanousd or 0) + (second.cost_nanousd or 0)
    assert outcome.baseline_nanousd == second.baseline_nanousd
    assert [attempt.result for attempt in outcome.attempts] == ["ok", "ok"]
    assert walls.upstream.open_streams == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_good_answer_is_given_as_it_came(stream: bool) -> None:
    """Held, judged, released: one attempt, and no header of a weakness."""
    walls = house("ok", "ok")
    sent = await walls.ask(stream=stream, include_usage=True)
    assert text(sent) == " w0 w1 w2"
    assert {"weakness", "escalated-from", "escalation-cost-usd"}.isdisjoint(headers(sent))
    (entry,) = closing(walls)
    assert (entry.target_id, entry.flags, entry.output_tokens) == ("t0", (), 3)
    assert (entry.baseline_nanousd or 0) > 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("broken", ["error-500", "error-400", "cut-0", "cut-2", "malformed-2", "hang", "hang-2"])
async def test_when_the_better_target_fails_the_weak_answer_is_given(broken: str, stream: bool) -> None:
    """An answer that we have is never lost: the caller gets it whole, with its weakness told, and it has its baseline."""
    walls = house("truncated", broken)
    sent = await walls.ask(stream=stream)
    assert text(sent) == " w0 w1 w2"
    told = headers(sent)
    assert (told["target"], told["reason"], told["weakness"]) == ("t0", "cheapest-capable", "truncated")
    assert "escalated-from" not in told
    failed, given = closing(walls)
    assert (failed.target_id, given.target_id, given.flags) == ("t1", "t0", ())
    assert (given.baseline_nanousd or 0) > 0
    (outcome,) = walls.told.outcomes
    assert (outcome.target_id, outcome.escalated_from, outcome.status) == ("t0", None, 200)
    assert outcome.output_tokens == given.output_tokens
    assert walls.upstream.open_streams == 0


async def test_the_better_target_is_asked_once() -> None:
    """No retry and no further candidate: there is an answer already."""
    walls = house("truncated", "error-500", "ok")
    await walls.ask(stream=True)
    assert [call.deployment.target_id for call in walls.upstream.calls] == ["t0", "t1"]


@pytest.mark.parametrize(("second", "given"), [("refusal", "t0"), ("truncated", "t1"), ("logprob-300", "t1")])
async def test_of_two_weak_answers_the_more_usable_is_given(second: str, given: str) -> None:
    """A cut answer is better than a refusal; otherwise the more capable target's stands. The other is booked as unused."""
    walls = house("truncated", second)
    rules(walls, min_mean_logprob=-2.0)
    sent = await walls.ask(stream=True)
    assert headers(sent)["target"] == given
    unused = [entry for entry in closing(walls) if entry.flags]
    assert [(entry.target_id, entry.flags, entry.baseline_nanousd) for entry in unused] == [
        ("t1", ("discarded",), None) if given == "t0" else ("t0", ("escalated",), None)
    ]
    assert walls.told.outcomes[0].target_id == given


async def test_a_failure_while_held_falls_back_like_any_other() -> None:
    """Nothing was committed, so a stream that is cut in its middle is not the caller's to see."""
    walls = house("cut-3", "ok")
    sent = await walls.ask(stream=True)
    assert text(sent) == " w0 w1 w2"
    assert headers(sent)["reason"] == "fallback"
    assert [(entry.target_id, entry.flags) for entry in closing(walls)] == [
        ("t0", ("stream_cut", "usage_missing")),
        ("t1", ()),
    ]


async def test_a_fallback_that_is_weak_is_escalated_past_what_was_tried() -> None:
    """The target that failed is not asked again, however capable."""
    walls = House("error-500", "truncated", "ok", capabilities=(0.8, 0.6, 1.0), settings=TeamSettings(escalation="all"))
    sent = await walls.ask(stream=False)
    assert headers(sent)["target"] == "t2"
    assert [call.deployment.target_id for call in walls.upstream.calls][-2:] == ["t1", "t2"]


@pytest.mark.parametrize(
    ("escalation", "said_by_request", "stream", "held"),
    [
        ("off", None, False, False),
        ("whole", None, False, True),
        ("whole", None, True, False),
        ("all", None, True, True),
        ("all", "false", False, False),
        ("off", "TRUE", True, True),
    ],
)
async def test_who_opted_in(escalation: Escalation, said_by_request: str | None, stream: bool, held: bool) -> None:
    """The team's setting, and the request's header before it."""
    walls = house("truncated", "ok", escalation=escalation)
    sent = await walls.ask(stream=stream, escalate=said_by_request)
    assert headers(sent)["target"] == ("t1" if held else "t0")
    assert len(closing(walls)) == (2 if held else 1)


async def test_a_header_that_says_neither_is_refused() -> None:
    """400, and it names what to send."""
    sent = await house("ok").ask(stream=False, escalate="maybe")
    assert sent[0]["status"] == 400
    assert b"x-weighbridge-escalate" in said(sent)


async def test_a_named_model_is_never_replaced() -> None:
    """Who asks for a model gets that model."""
    walls = house("truncated", "ok")
    sent = await walls.ask(stream=False, model="t0", escalate="true")
    assert headers(sent)["target"] == "t0"
    assert len(closing(walls)) == 1


@pytest.mark.parametrize("bound", [{"hold_max_bytes": 1_024}, {"hold_max_s": 0.02}])
async def test_a_stream_that_reaches_a_bound_flows_on_unjudged(bound: dict[str, Any]) -> None:
    """It is given whole and in order, as if it had never been held."""
    walls = house("truncated+tokens-40+every-2ms", "ok")
    rules(walls, **bound)
    sent = await walls.ask(stream=True)
    assert text(sent) == "".join(f" w{index}" for index in range(40))
    assert "weakness" not in headers(sent)
    assert len(sent) > 5
    (entry,) = closing(walls)
    assert (entry.target_id, entry.output_tokens, entry.flags) == ("t0", 40, ())
    # What is learned from it was judged when the caller had it all.
    assert walls.told.outcomes[0].weakness == "truncated"


async def test_a_better_answer_that_reaches_a_bound_flows_too() -> None:
    """It is long, and that is no reason to throw it away."""
    walls = house("truncated", "ok+tokens-40+every-1ms")
    rules(walls, hold_max_bytes=2_048)
    sent = await walls.ask(stream=True)
    assert text(sent) == "".join(f" w{index}" for index in range(40))
    assert headers(sent)["escalated-from"] == "t0"
    assert [entry.flags for entry in closing(walls)] == [("escalated",), ()]


@pytest.mark.parametrize(
    ("scripts", "stream"),
    [
        (("truncated+tokens-10+every-20ms", "ok"), True),
        (("truncated+slow-first-token-40ms", "ok"), False),
        (("truncated", "ok+tokens-10+every-20ms"), True),
        (("truncated", "ok+slow-first-token-40ms"), False),
    ],
)
async def test_a_caller_that_leaves_while_held_settles_everything(scripts: tuple[str, ...], stream: bool) -> None:
    """During the first answer or during the better one: each attempt closes once, and the upstream is cut."""
    walls = house(*scripts)
    sent = await walls.ask(stream=stream, hang_up_after_s=0.03)
    assert sent == []
    entries = closing(walls)
    assert len(entries) == len(walls.upstream.calls)
    assert [entry.flags[0] for entry in entries] == ["caller_gone"] * len(entries)
    assert all(entry.baseline_nanousd is None for entry in entries)
    (outcome,) = walls.told.outcomes
    assert (outcome.status, outcome.ttft_s) == (499, None)
    assert walls.upstream.open_streams == 0
    assert walls.line.in_flight == 0


async def test_a_process_escalates_no_more_than_its_share() -> None:
    """The burst is spent, then weak answers are given as they are."""
    walls = house("truncated", "ok")
    rules(walls, max_share=0.0)
    assert headers(await walls.ask(stream=False))["target"] == "t0"
    rules(walls, max_share=0.1)
    used = [headers(await walls.ask(stream=False))["target"] for _ in range(40)]
    assert used.count("t1") in range(20, 26)
    assert used[:20] == ["t1"] * 20


async def test_nothing_is_held_for_the_most_capable_target() -> None:
    """Its stream is relayed as it comes."""
    walls = House("ok+tokens-9+every-1ms", "ok", capabilities=(1.0, 0.9), settings=TeamSettings(escalation="all"))
    assert len(await walls.ask(stream=True)) > 5


async def test_the_conversation_stays_with_the_target_that_answered() -> None:
    """Its prompt cache is the warm one, so affinity remembers the better target."""
    tokens = CACHE_MIN_TOKENS
    walls = house(f"truncated+prompt-tokens-{tokens}", f"ok+prompt-tokens-{tokens}")
    session: dict[str, Any] = {"x-session-id": "s"}
    await walls.ask(stream=False, **session)
    sticky = walls.line._router._affinity.lookup("team_a", "s")
    assert sticky is not None
    assert sticky.target_id == "t1"
