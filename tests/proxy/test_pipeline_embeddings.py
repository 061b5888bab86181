"""What the line does with texts to be embedded where it does more than pass them on: never by way of another model."""

import json
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from accounts.caller import TeamSettings
from cost.budgets.budget_reservations import BudgetCheck
from cost.ledger.entries import Entry
from cost.savings.comparators import Comparator
from providers.catalog import Catalog
from providers.errors import AnswerLost, StreamCut, UpstreamError
from providers.target import Capability
from providers.upstream import UpstreamCall
from providers.wire import Event, decode_embeddings
from proxy.admit.limits.limit import Limit
from proxy.parse.wires.chat.dialect import EMBEDDINGS
from tests.proxy.exchanges import HeardExchange
from tests.proxy.plan.test_route_plan import price
from tests.proxy.test_pipeline_money import Gate, TightBooks, exceeded, headers_of, settled
from tests.scenarios.test_rules import MINTED, House

pytestmark = pytest.mark.usefixtures("leaping_time")

EMBEDS: frozenset[Capability] = frozenset({"embeddings"})
VECTORS = b'{"object":"list","data":[{"index":0,"embedding":[0.5]}],"usage":{"prompt_tokens":9,"total_tokens":9}}'


class Vectors:
    """An upstream that embeds, or fails first as it is told to; its own stream, too."""

    ended = False

    def __init__(self, *failures: UpstreamError, cut: bool = False, payload: bytes = VECTORS) -> None:
        self.calls: list[UpstreamCall] = []
        self._failures = deque(failures)
        self._cut = cut
        self._left = [payload]

    async def open(self, call: UpstreamCall) -> "Vectors":
        self.calls.append(call)
        if self._failures:
            raise self._failures.popleft()
        return self

    async def read(self) -> list[Event] | None:
        if self._cut:
            self._cut = False
            raise StreamCut("cut", deployment_id="t0/a")
        return [decode_embeddings(self._left.pop(), "t0/a")] if self._left else None

    def unread(self) -> list[Event]:
        return []

    async def aclose(self) -> None:
        pass


def house_of(upstream: Vectors, embedders: int = 1, **more: Any) -> House:
    """Targets t0, t1, ... of which the last one answers chats; the first ones embed."""
    house = House(*["ok"] * (embedders + 1), upstream=upstream, **more)
    rules = house.line.config
    targets = {
        name: msgspec.structs.replace(each, capabilities=EMBEDS) if index < embedders else each
        for index, (name, each) in enumerate(rules.catalog.targets.items())
    }
    house.line.config = msgspec.structs.replace(rules, catalog=Catalog(targets=targets))
    return house


async def embed(house: House, *headers: tuple[bytes, bytes], **fields: Any) -> list[dict[str, Any]]:
    """One request."""
    body = json.dumps({"model": "t0", "input": "a gate", **fields}).encode()
    exchange = HeardExchange(
        body, [(b"authorization", f"Bearer {MINTED.plaintext}".encode()), *headers], path="/v1/embeddings"
    )
    await house.line.serve(EMBEDDINGS, exchange)
    return exchange.messages


def told(sent: Sequence[dict[str, Any]]) -> Any:
    return json.loads(sent[1]["body"])


async def test_a_spent_budget_never_embeds_with_another_model() -> None:
    """A soft budget's downgrade changes nothing, though a cheaper target embeds as well."""
    house = house_of(Vectors(), embedders=2, budgets=Gate(BudgetCheck(downgrade=True)))
    sent = await embed(house, model="t1")
    assert sent[0]["status"] == 200
    assert headers_of(sent)["x-weighbridge-target"] == "t1"
    assert "x-weighbridge-downgraded" not in headers_of(sent)


async def test_a_spent_hard_budget_refuses_embeddings() -> None:
    """402 and no call, whether it is seen at first or only when the money is held."""
    for more in ({"budgets": Gate(BudgetCheck(exceeded=exceeded()))}, {"books": TightBooks(0, downgrade=True)}):
        upstream = Vectors()
        house = house_of(upstream, embedders=2, **more)
        sent = await embed(house, model="t1")
        assert (sent[0]["status"], told(sent)["error"]["code"]) == (402, "budget_exceeded")
        assert not upstream.calls
        assert not house.books.entries


async def test_embeddings_save_nothing_by_their_model() -> None:
    """A chat model's price is no baseline for vectors: what was named is, also where a fallback served."""
    house = house_of(Vectors())
    await embed(house)
    entry = settled(house)
    assert (entry.input_tokens, entry.output_tokens, entry.served) == (9, 0, True)
    assert entry.baseline_nanousd == entry.cost_nanousd == 9_000
    assert (entry.baseline_price or "").startswith("t0@")
    hosted = house_of(Vectors())
    comparators = hosted.line.config.comparators
    host = Comparator(target_id="elsewhere", price=price(3, 3))
    hosted.line.config = msgspec.structs.replace(
        hosted.line.config, comparators=msgspec.structs.replace(comparators, hosted={"t0": host})
    )
    await embed(hosted)
    assert settled(hosted).hosted_nanousd == 27_000
    without = house_of(Vectors())
    rules = without.line.config
    without.line.config = msgspec.structs.replace(
        rules, comparators=msgspec.structs.replace(rules.comparators, reference=None)
    )
    await embed(without)
    assert settled(without).baseline_nanousd is None


@pytest.mark.parametrize(
    "upstream",
    [Vectors(AnswerLost("lost", deployment_id="t0/a")), Vectors(cut=True)],
    ids=["lost before an answer", "cut within it"],
)
async def test_a_lost_answer_is_asked_for_again(upstream: Vectors) -> None:
    """Of the same model, by an alias that has two; nothing of it was visible, and the books have one that was served."""
    house = house_of(upstream, embedders=2)
    policy = msgspec.structs.replace(house.line.config.policy, aliases={"both": ("t0", "t1")})
    house.line.config = msgspec.structs.replace(house.line.config, policy=policy)
    sent = await embed(house, model="both")
    assert sent[0]["status"] == 200
    assert told(sent)["data"] == [{"index": 0, "embedding": [0.5]}]
    assert len(upstream.calls) == 2
    assert {call.request.operation for call in upstream.calls} == {"embeddings"}
    assert [entry.served for entry in house.books.entries if entry.entry == "settle"].count(True) == 1


async def test_a_chat_never_stands_in_for_vectors() -> None:
    """The operator's fallback to a model that answers is passed over, and the failure is told."""
    upstream = Vectors(*[AnswerLost("lost", deployment_id="t0/a") for _ in range(9)])
    house = house_of(upstream)
    policy = msgspec.structs.replace(house.line.config.policy, fallbacks={"t0": ("t1",)})
    house.line.config = msgspec.structs.replace(house.line.config, policy=policy)
    sent = await embed(house)
    assert sent[0]["status"] in {502, 503}
    assert {call.deployment.target_id for call in upstream.calls} == {"t0"}


async def test_limits_take_what_goes_in_and_guess_no_answer() -> None:
    """A minute's tokens are those of the texts; they are settled by the engine's own count."""
    limit = Limit(key="team/team_a//tokens", scope="team", kind="tokens", rate=1, burst=100)
    house = house_of(Vectors(), limits=(limit,))
    sent = await embed(house, input=[1] * 40)
    assert sent[0]["status"] == 200
    assert int(headers_of(sent)["x-ratelimit-remaining-tokens"]) == 60
    refused = await embed(house, input=[1] * 101)
    assert refused[0]["status"] == 429


async def test_the_batch_tier_and_wishes_for_chats() -> None:
    """The tier is booked; a wish to escalate is heard and changes nothing."""
    house = house_of(Vectors(), settings=TeamSettings(learning="prompts", escalation="all", shadow_share=1.0))
    sent = await embed(house, (b"x-tier", b"batch"), (b"x-weighbridge-escalate", b"true"))
    assert sent[0]["status"] == 200
    assert settled(house).tier == "batch"
    (outcome,) = house.told.outcomes
    assert (outcome.operation, outcome.prediction, outcome.weakness, outcome.ttft_s) == ("embeddings", None, None, None)
    assert (outcome.input_tokens, outcome.output_tokens, outcome.target_id) == (9, 0, "t0")


async def test_what_was_refused_is_told_as_embeddings_too() -> None:
    """Also where no target was reached, or the body was none."""
    house = house_of(Vectors())
    await embed(house, model="nobody")
    await embed(house, input={})
    assert [(each.operation, each.status) for each in house.told.outcomes] == [("embeddings", 404), ("embeddings", 400)]


@pytest.mark.parametrize(
    ("usage", "tokens", "source"),
    [
        (None, 40, "estimated"),
        ({}, 40, "estimated"),
        ({"total_tokens": 9}, 9, "upstream"),
        ({"prompt_tokens": 9, "completion_tokens": None}, 9, "upstream"),
        ({"prompt_tokens": -1}, 40, "estimated"),
        ({"prompt_tokens": 10**12}, 40, "estimated"),
        ("many", 40, "estimated"),
    ],
)
async def test_odd_usage_is_estimated(usage: Any, tokens: int, source: str) -> None:
    """From the texts that were sent; never is anything generated."""
    payload = json.dumps({"data": [{"index": 0, "embedding": "AAA="}], "usage": usage}).encode()
    house = house_of(Vectors(payload=payload))
    sent = await embed(house, input=[1] * 40)
    entry: Entry = settled(house)
    assert sent[0]["status"] == 200
    assert (entry.input_tokens, entry.output_tokens, entry.usage_source) == (tokens, 0, source)
