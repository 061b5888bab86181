"""What a service's verdict comes to in a request."""

import json
from typing import Any

import pytest

from accounts.caller import Caller
from guard.guard_config import GuardRule, GuardSection
from guard.moderation import Direction
from guard.moderation import Verdict as Said
from guard.ruleset import Finding, Verdict
from proxy.admit.moderating import Moderation, NoKey, read_whole, services_of
from proxy.errors import GuardUnavailable
from proxy.shared.moderation_client import ModerationClient, Service, ServiceUnavailable

CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "be nice"},
        {"role": "user", "content": "an old question"},
        {"role": "assistant", "content": "an answer"},
        {"role": "user", "content": [{"type": "text", "text": "a new question"}]},
    ],
}


CALLER = Caller(key_id="key", key_name="key", team_id="team", organisation_id="organisation")


def rule(**fields: Any) -> GuardRule:
    return GuardRule(**{"name": "house", "kind": "http", "url": "http://house/v1", "input": "block", **fields})


class Scripted(ModerationClient):
    """Says what it was told to, and remembers what it was asked."""

    def __init__(self, *said: Said | Exception) -> None:
        super().__init__()
        self._said = list(said)
        self.asked: list[tuple[str, list[str]]] = []
        self.directions: list[Direction] = []

    async def judge(self, service: Service, texts: Any, direction: Direction) -> Said:
        self.directions.append(direction)
        self.asked.append((service.url, list(texts)))
        said = self._said.pop(0)
        if isinstance(said, Exception):
            raise said
        return said


async def judged(
    client: Scripted, *rules: GuardRule, wire: str = "chat", body: Any = CHAT, before: Verdict | None = None
) -> Verdict:
    section = GuardSection(rules=list(rules))
    moderation = Moderation(services_of(section, str), client)
    return await moderation.judge(
        CALLER, section.rules, before or Verdict(), read_whole(wire, json.dumps(body).encode())
    )


async def test_new_texts_are_asked_about_and_all_where_own_engines_are_the_matter() -> None:
    """By whom a rule names."""
    client = Scripted(*[Said(flagged=False)] * 3)
    await judged(
        client,
        rule(),
        rule(name="b", input="own", url="http://own/"),
        rule(name="c", roles=["system"], url="http://system/"),
    )
    assert dict(client.asked) == {
        "http://house/v1": ["a new question"],
        "http://own/": ["an old question", "a new question"],
        "http://system/": ["be nice"],
    }


@pytest.mark.parametrize(
    ("action", "blocked", "own"), [("block", ("house",), False), ("own", (), True), ("flag", (), False)]
)
async def test_a_yes_comes_to_what_the_rule_says(action: str, blocked: tuple[str, ...], own: bool) -> None:
    """One finding with the number of categories; what was found before stays."""
    before = Verdict(findings=(Finding("email", "email", "mask", 2),))
    client = Scripted(Said(flagged=True, categories=frozenset({"hate", "violence"})))
    verdict = await judged(client, rule(input=action), before=before)
    assert (verdict.blocked, verdict.own, verdict.body) == (blocked, own, None)
    assert verdict.findings == (*before.findings, Finding("house", "http", action, 2))  # type: ignore[arg-type]


async def test_texts_come_back_into_their_places() -> None:
    """And the next rule is asked about them as they are then."""
    masking = rule(shape="litellm", input="mask")
    client = Scripted(
        Said(flagged=False, texts=("a [gone] question",)),
        Said(flagged=False, texts=("a [gone] [too]",)),
        Said(flagged=False),
    )
    verdict = await judged(
        client, rule(name="last", url="http://last/"), masking, masking.model_copy(update={"name": "b"})
    )
    assert [texts for _, texts in client.asked] == [["a new question"], ["a [gone] question"], ["a [gone] [too]"]]
    assert verdict.body is not None
    assert json.loads(verdict.body)["messages"][3]["content"] == [{"type": "text", "text": "a [gone] [too]"}]
    assert json.loads(verdict.body)["messages"][:3] == CHAT["messages"][:3]


async def test_texts_that_come_back_unchanged_are_none() -> None:
    """No finding, and the body byte for byte."""
    client = Scripted(Said(flagged=False, texts=("a new question",)))
    assert await judged(client, rule(shape="litellm", input="mask")) == Verdict()


async def test_a_masking_service_that_blocks_blocks() -> None:
    """BLOCKED is no request to change something."""
    client = Scripted(Said(flagged=True, categories=frozenset({"blocked"})))
    assert (await judged(client, rule(shape="litellm", input="mask"))).blocked == ("house",)


async def test_what_may_not_be_changed_goes_to_own_engines() -> None:
    """A text that becomes a vector is never another one."""
    client = Scripted(Said(flagged=False, texts=("[gone]",)))
    body = {"model": "m", "input": "a text"}
    verdict = await judged(client, rule(shape="litellm", input="mask"), wire="embeddings", body=body)
    assert (verdict.own, verdict.body) == (True, None)


async def test_without_texts_nobody_is_asked() -> None:
    """A request that has none of a user or a tool."""
    client = Scripted()
    assert await judged(client, rule(), body={"model": "m", "messages": []}) == Verdict()


@pytest.mark.parametrize("said", [ServiceUnavailable("status", "it answered 500"), Said(flagged=None)])
async def test_no_verdict_is_no_pass(said: Said | Exception) -> None:
    """Closed unless the rule says open, and then told."""
    with pytest.raises(GuardUnavailable) as refused:
        await judged(Scripted(said), rule())
    assert "question" not in str(refused.value)
    verdict = await judged(Scripted(said), rule(on_error="open"))
    assert verdict.findings == (Finding("house", "http", "open", 1),)


def test_a_key_that_is_not_there_is_told_at_the_start() -> None:
    """By the rule's name."""

    def resolve(reference: str) -> str:
        raise KeyError(reference)

    with pytest.raises(NoKey, match="`house`"):
        services_of(GuardSection(rules=[rule(key="env:MISSING")]), resolve)


def test_two_rules_of_one_address_may_have_two_keys() -> None:
    """A service is all that is said of it."""
    found = services_of(
        GuardSection(rules=[rule(key="env:A"), rule(name="b", key="env:B"), rule(name="c", key="env:A")]), str
    )
    assert sorted(each.key or "" for each in found.values()) == ["env:A", "env:B"]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


DOWN = ServiceUnavailable("status", "it answered 500")
LATE = ServiceUnavailable("deadline", "not within 300 ms")


async def test_whoever_fails_five_times_is_left_alone_and_then_tried_once() -> None:
    """Nobody waits for a deadline that will pass: 503 at once, with when to come again; one probe brings it back."""
    clock, house_rule = Clock(), rule()
    client = Scripted(*[LATE] * 5, DOWN, Said(flagged=False), Said(flagged=False))
    moderation = Moderation(services_of(GuardSection(rules=[house_rule]), str), client, clock=clock)

    async def ask() -> Verdict:
        return await moderation.judge(CALLER, [house_rule], Verdict(), read_whole("chat", json.dumps(CHAT).encode()))

    for _ in range(5):
        with pytest.raises(GuardUnavailable):
            await ask()
    clock.now += 2
    with pytest.raises(GuardUnavailable) as refused:
        await ask()
    assert len(client.asked) == 5
    assert refused.value.retry_after_s == 3.0
    clock.now += 3
    with pytest.raises(GuardUnavailable) as refused:
        await ask()
    assert (len(client.asked), refused.value.retry_after_s) == (6, 10.0)
    clock.now += 10
    await ask()
    await ask()
    assert len(client.asked) == 8


async def test_an_open_rule_passes_at_once_while_its_service_is_left_alone() -> None:
    """Told as when it was asked; and what its own texts make too long is no failure of the service."""
    house_rule = rule(on_error="open")
    client = Scripted(*[ServiceUnavailable("too_long", "")] * 9, *[DOWN] * 5)
    moderation = Moderation(services_of(GuardSection(rules=[house_rule]), str), client, clock=Clock())
    for _ in range(20):
        judged = await moderation.judge(CALLER, [house_rule], Verdict(), read_whole("chat", json.dumps(CHAT).encode()))
        assert judged.findings == (Finding("house", "http", "open", 1),)
    assert len(client.asked) == 14


async def test_one_team_keeps_no_other_from_a_service() -> None:
    """What one key's texts may have caused is counted against that key alone; a refused connection against all."""
    house_rule = rule()
    other = Caller(key_id="k2", key_name="k2", team_id="t2", organisation_id="organisation")
    body = read_whole("chat", json.dumps(CHAT).encode())
    client = Scripted(*[DOWN] * 5, Said(flagged=False), *[ServiceUnavailable("connection", "")] * 5)
    moderation = Moderation(services_of(GuardSection(rules=[house_rule]), str), client, clock=Clock())
    for _ in range(6):
        with pytest.raises(GuardUnavailable):
            await moderation.judge(CALLER, [house_rule], Verdict(), body)
    await moderation.judge(other, [house_rule], Verdict(), body)
    for _ in range(6):
        with pytest.raises(GuardUnavailable):
            await moderation.judge(other, [house_rule], Verdict(), body)
    assert len(client.asked) == 11


async def test_answers_are_asked_about_by_their_own_direction() -> None:
    """Findings are of the side of the answer, and name what is done."""
    rules = [rule(input="off", output="block"), rule(name="other", url="http://other/v1", output="flag")]
    client = Scripted(Said(flagged=True), Said(flagged=True, categories=frozenset({"a", "b"})))
    moderation = Moderation(services_of(GuardSection(rules=rules), str), client)
    found = await moderation.judge_answer(CALLER, rules, ["said"], str.upper)
    assert found == (
        Finding("house", "http", "block", 1, "output"),
        Finding("other", "http", "flag", 2, "output"),
    )
    assert client.asked == [("http://house/v1", ["SAID"]), ("http://other/v1", ["SAID"])]
    assert client.directions == ["output", "output"]
