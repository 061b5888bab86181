"""The watch of prompt caches: what it looks at, what it leaves, its bounds, and what it writes down."""

import json
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec
import pytest

from cost.prices import Price
from providers.quirks import quirks_of
from providers.wire import ChatRequest
from proxy.dispatch.attempt import Attempt
from proxy.parse.chat_request import parse_chat
from proxy.parse.headers import RequestHeaders
from proxy.settle.prompt_caches.watch import PromptCacheWatch, WatchLimits

PRICE: Final = Price(
    version="v",
    input_nanousd=3_000_000_000,
    cached_input_nanousd=300_000_000,
    cache_write_nanousd=3_750_000_000,
    output_nanousd=1,
)
RULES: Final = "Never do anything without asking first, and say what was asked and why.\n" * 100


def asking(at: int = 1, words: str = "Hello") -> ChatRequest:
    system = f"It is {at:02}:00:00.\n{RULES}"
    body = {"model": "m", "messages": [{"role": "system", "content": system}, {"role": "user", "content": words}]}
    return parse_chat(json.dumps(body).encode(), RequestHeaders(tier="interactive"))


def attempt(request: ChatRequest, **changes: Any) -> Attempt:
    """What is read of an attempt that ended well."""
    said: dict[str, Any] = {
        "tokens": 2_000, "cached": 0, "key": "key", "price": PRICE, "began": 0.5, "address": "https://api.openai.com/v1",
        "result": "ok", "source": "upstream", "origin": "caller", "own": False, "tier": "interactive", "target": "m",
    } | changes  # fmt: skip
    caller = SimpleNamespace(organisation_id="acme", team_id="team", key_id=said["key"])
    usage = SimpleNamespace(
        input_tokens=said["tokens"], cached_input_tokens=said["cached"], cache_write_tokens=0, source=said["source"]
    )
    found = SimpleNamespace(
        routed=SimpleNamespace(
            request=request, caller=caller, origin=said["origin"], pools={}, facts=SimpleNamespace(tier=said["tier"])
        ),
        settled=SimpleNamespace(usage=usage, outcome=SimpleNamespace(result=said["result"])),
        candidate=SimpleNamespace(
            target=SimpleNamespace(target_id=said["target"], price=said["price"], own=said["own"])
        ),
        deployment=SimpleNamespace(quirks=quirks_of("openai", said["address"], "gpt-5-mini")),
        started_at=said["began"],
        first_token_at=said["began"] + 0.5,
    )
    return cast("Attempt", found)


def watching(**limits: Any) -> PromptCacheWatch:
    return PromptCacheWatch(key=b"k", limits=WatchLimits(**limits), now_us=lambda: 1_000)


def counted(watch: PromptCacheWatch) -> dict[str, tuple[int, int, int, int]]:
    watch.digest(100)
    return {each.cause: (each.requests, each.tokens, each.nanousd, each.unpriced) for each in watch.take()}


def test_a_loss_is_counted_with_its_money() -> None:
    """Tokens at the price of input less that of input from a cache; nothing is counted twice."""
    watch = watching()
    watch.note(attempt(asking(1)))
    assert counted(watch) == {"looked": (1, 2_000, 0, 0)}
    watch.note(attempt(asking(2), began=10.0))
    found = counted(watch)
    requests, tokens, nanousd, unpriced = found["time"]
    assert (requests, unpriced) == (1, 0)
    assert 1_900 < tokens < 2_000
    assert nanousd == tokens * 2_700_000_000 // 1_000_000
    assert counted(watch) == {}


def test_without_a_price_the_money_is_unknown() -> None:
    watch = watching()
    watch.note(attempt(asking(1), price=None))
    watch.note(attempt(asking(2), price=None, began=10.0))
    _, tokens, nanousd, unpriced = counted(watch)["time"]
    assert (nanousd, unpriced) == (0, 1)
    assert tokens


def test_a_batch_loses_at_its_own_price() -> None:
    half = msgspec.structs.replace(PRICE, input_nanousd=1_500_000_000, cached_input_nanousd=150_000_000)
    watch, price = watching(), msgspec.structs.replace(PRICE, batch=half)
    watch.note(attempt(asking(1), price=price, tier="batch"))
    watch.note(attempt(asking(2), price=price, tier="batch", began=10.0))
    _, tokens, nanousd, _ = counted(watch)["time"]
    assert nanousd == tokens * 1_350


@pytest.mark.parametrize(
    "changes",
    [
        {"result": "cut"},
        {"source": "estimated"},
        {"origin": "shadow"},
        {"own": True},
        {"price": msgspec.structs.replace(PRICE, cached_input_nanousd=PRICE.input_nanousd)},
        {"tokens": 900, "address": "https://elsewhere.example/v1"},
    ],
)
def test_what_says_nothing_of_a_cache_is_passed_over(changes: dict[str, Any]) -> None:
    """No whole answer, no count of the provider's, nothing to be saved, or too short where nobody says from when on."""
    watch = watching()
    watch.note(attempt(asking(), **changes))
    assert watch.waiting == 0
    assert counted(watch) == {}


def test_short_prompts_are_counted_unread_and_claim_nothing() -> None:
    watch = watching()
    watch.note(attempt(asking(), tokens=900))
    assert watch.waiting == 0
    assert counted(watch) == {"short": (1, 900, 0, 0)}


@pytest.mark.parametrize("limits", [{"waiting": 2}, {"waiting_a_key": 2}, {"waiting_bytes": 15_500}])
def test_what_finds_no_room_is_counted_as_not_looked_at(limits: dict[str, int]) -> None:
    """And there is room again once those before it were looked at."""
    watch = watching(**limits)
    for place in range(5):
        watch.note(attempt(asking(place)))
    assert watch.waiting == 2
    found = counted(watch)
    assert (found["looked"][0], found["skipped"][0]) == (2, 3)
    watch.note(attempt(asking(7)))
    assert watch.waiting == 1


def test_a_very_long_prompt_is_not_looked_at() -> None:
    watch = watching(most_bytes=1_000)
    watch.note(attempt(asking()))
    assert counted(watch) == {"skipped": (1, 2_000, 0, 0)}


def test_what_cannot_be_read_is_not_looked_at() -> None:
    """It was answered, whatever it is."""
    watch = watching()
    broken = msgspec.structs.replace(asking(), fields={**asking().fields, "tools": msgspec.Raw(b'{"no": "list"}')})
    watch.note(attempt(broken))
    assert counted(watch) == {"skipped": (1, 2_000, 0, 0)}


def test_keys_are_apart_and_the_least_used_goes() -> None:
    watch = watching(keys=2)
    watch.note(attempt(asking(1), key="a"))
    watch.note(attempt(asking(2), key="b", began=10.0))
    assert counted(watch) == {"looked": (2, 4_000, 0, 0)}
    watch.note(attempt(asking(3), key="c", began=20.0))
    counted(watch)
    watch.note(attempt(asking(4), key="a", began=30.0))
    assert set(counted(watch)) == {"looked"}
    watch.note(attempt(asking(5), key="a", began=40.0))
    assert set(counted(watch)) == {"looked", "time"}


def test_a_conversation_takes_one_place_however_long_it_grows() -> None:
    """So that others of its key are remembered, too."""
    watch = watching(prompts=2)
    watch.note(attempt(asking(1, "Another")))
    body = json.loads(msgspec.json.encode(asking(1, "Hello").fields))
    for turn in range(4):
        body["messages"] += [{"role": "assistant", "content": "Yes"}, {"role": "user", "content": f"More {turn}"}]
        asked = parse_chat(json.dumps(body).encode(), RequestHeaders(tier="interactive"))
        watch.note(attempt(asked, cached=1_900, began=10.0 * (turn + 1)))
        counted(watch)
    watch.note(attempt(asking(1, "Another"), cached=0, began=90.0))
    assert set(counted(watch)) == {"looked", "unknown"}


def test_rows_have_a_bound() -> None:
    watch = watching(rows=2)
    for place in range(5):
        watch.note(attempt(asking(), tokens=900, target=f"m{place}"))
    assert len(watch.take()) == 2
