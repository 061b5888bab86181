"""The test kit: `await try_out(HouseRules(), "guard")` calls a plug-in with sample facts, odd ones too, each within a deadline.

It raises AssertionError with everything that is wrong. `config check` makes the first of these calls.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from weighbridge.plugins import checking
from weighbridge.plugins.checking import PluginFault
from weighbridge.plugins.facts import Call, Candidate, Kind, Outcome, RequestFacts, Text

DEADLINES_S: Final[Mapping[Kind, float]] = {
    "guard": 0.3,
    "scorer": 0.05,
    "exporter": 10.0,
    "authenticator": 1.0,
    "dialect": 0.25,
}
"""Seconds that one call may take where the configuration says nothing."""
_Found = TypeVar("_Found")


def sample_request(**changed: Any) -> RequestFacts:
    """Return made-up facts of a request; `changed` are other values."""
    usual: dict[str, Any] = {
        "request_id": "sample",
        "organisation_id": "default",
        "team_id": "sample-team",
        "key_id": "sample-key",
        "model": "auto",
        "input_tokens": 12,
        "is_sample": True,
    }
    return RequestFacts(**(usual | changed))


def sample_texts(*values: str) -> tuple[Text, ...]:
    """Return these texts as messages of a user."""
    words = values or ("Please write to ada@example.com.",)
    return tuple(Text(value=each, path=f"messages[{place}].content") for place, each in enumerate(words))


def sample_candidates() -> tuple[Candidate, ...]:
    """Return three candidates: one's own, a bought one, and one without a price."""
    return (
        Candidate(
            target_id="small",
            provider="own",
            own=True,
            expected_nanousd=20_000,
            adequate=0.7,
            max_context_tokens=32_000,
        ),
        Candidate(
            target_id="large", provider="bought", expected_nanousd=900_000, adequate=0.95, max_context_tokens=128_000
        ),
        Candidate(target_id="unpriced", provider="bought"),
    )


def sample_outcomes(count: int = 2) -> tuple[Outcome, ...]:
    """Return outcomes: the first answered, the second refused, and so on in turns."""
    answered = {"status": 200, "target_id": "small", "provider": "own", "reason": "cheapest-capable", "attempts": 1}
    used = {"input_tokens": 12, "output_tokens": 30, "cost_nanousd": 20_000, "duration_s": 0.8, "ttft_s": 0.2}
    refused = {"status": 429, "error_code": "rate_limited"}
    return tuple(
        Outcome(
            request_id=f"sample-{place}",
            ended_at=1_764_288_000.0 + place,
            team_id="sample-team",
            key_id="sample-key",
            is_sample=True,
            **({**answered, **used} if place % 2 == 0 else refused),  # type: ignore[arg-type]
        )
        for place in range(count)
    )


def sample_headers(**others: str) -> Mapping[str, str]:
    """Return headers of a caller that no plug-in knows; `others` have `_` for `-`."""
    named = {name.replace("_", "-"): value for name, value in others.items()}
    return {"authorization": "Bearer sample", **named}


def sample_body(*, stream: bool = False) -> Mapping[str, Any]:
    """Return the body of a chat request."""
    return {"model": "sample", "messages": [{"role": "user", "content": "Say hello."}], "stream": stream}


_ODD_TEXTS: Final = ("", "\u200b\u202e\ufeff", "é" * 3 + "\U0001f512", "a" * 100_000, "\x00\r\n", "\uff11\uff12\uff13")


async def called_once(plugin: Any, kind: Kind, deadline_s: float | None = None) -> None:
    """Call a plug-in once with sample facts. Raises what it raises, PluginFault, or TimeoutError where it is late."""
    within = DEADLINES_S[kind] if deadline_s is None else deadline_s
    match kind:
        case "guard":
            texts = sample_texts()
            checking.checked_verdict(await _in_time(plugin.check(texts, sample_request()), within), texts)
        case "scorer":
            _score(plugin, sample_request(), sample_candidates(), within)
        case "exporter":
            await _in_time(plugin.finished(sample_outcomes()), within)
        case "authenticator":
            checking.checked_identity(await _in_time(plugin.caller(sample_headers()), within))
        case "dialect":
            _write(plugin, stream=False, within=within)


async def try_out(plugin: Any, kind: Kind, *, deadline_s: float | None = None) -> None:
    """Call a plug-in with sample facts and with odd ones. Raises AssertionError with all that is wrong."""
    within = DEADLINES_S[kind] if deadline_s is None else deadline_s
    told = checking.class_problem(type(plugin), kind)
    problems = [] if told is None else [f"the class {told}"]
    for what, act in () if problems else (*_CASES, *_ODD_CASES[kind]):
        try:
            await act(plugin, kind, within)
        except TimeoutError:
            problems.append(f"{what}: it takes longer than {within:g} s")
        except PluginFault as fault:
            problems.append(f"{what}: {fault}")
        except Exception as error:  # noqa: BLE001 - whatever it raises is a finding
            problems.append(f"{what}: it raises {type(error).__name__}")
    assert not problems, "; ".join(problems)  # noqa: S101 - it is for tests


async def _usual(plugin: Any, kind: Kind, within: float) -> None:
    await called_once(plugin, kind, within)


async def _at_once(plugin: Any, kind: Kind, within: float) -> None:
    await asyncio.gather(*(called_once(plugin, kind, within) for _ in range(8)))


async def _no_text(plugin: Any, _kind: Kind, within: float) -> None:
    checking.checked_verdict(await _in_time(plugin.check((), sample_request()), within), ())


async def _odd_text(plugin: Any, _kind: Kind, within: float) -> None:
    texts = sample_texts(*_ODD_TEXTS)
    checking.checked_verdict(await _in_time(plugin.check(texts, sample_request()), within), texts)


async def _no_candidates(plugin: Any, _kind: Kind, within: float) -> None:
    _score(plugin, sample_request(), (), within)


async def _unknown_prices(plugin: Any, _kind: Kind, within: float) -> None:
    _score(plugin, sample_request(team_id="", model="", text=None), (Candidate(target_id="only"),), within)


async def _twice_alike(plugin: Any, _kind: Kind, within: float) -> None:
    first, again = (_score(plugin, sample_request(), sample_candidates(), within) for _ in range(2))
    if first != again:
        raise PluginFault("the same facts got two answers: a scorer is pure")


async def _empty_batch(plugin: Any, _kind: Kind, within: float) -> None:
    await _in_time(plugin.finished(()), within)


async def _large_batch(plugin: Any, _kind: Kind, within: float) -> None:
    await _in_time(plugin.finished(sample_outcomes(500)), within)


async def _no_headers(plugin: Any, _kind: Kind, within: float) -> None:
    if checking.checked_identity(await _in_time(plugin.caller({}), within)) is not None:
        raise PluginFault("whoever sends no header is known: return None")


async def _streamed(plugin: Any, _kind: Kind, within: float) -> None:
    _write(plugin, stream=True, within=within)


_Case = tuple[str, Callable[[Any, Kind, float], Awaitable[None]]]
_CASES: Final[Sequence[_Case]] = (("a usual call", _usual), ("eight at once", _at_once))
_ODD_CASES: Final[Mapping[Kind, Sequence[_Case]]] = {
    "guard": (("no text", _no_text), ("odd texts", _odd_text)),
    "scorer": (("no candidates", _no_candidates), ("unknown prices", _unknown_prices), ("twice", _twice_alike)),
    "exporter": (("an empty batch", _empty_batch), ("500 outcomes", _large_batch)),
    "authenticator": (("no headers", _no_headers),),
    "dialect": (("a stream", _streamed),),
}


async def _in_time(work: Awaitable[_Found], within: float) -> _Found:
    async with asyncio.timeout(within):
        return await work


def _score(plugin: Any, facts: RequestFacts, candidates: Sequence[Candidate], within: float) -> object:
    started = time.monotonic()
    found = checking.checked_scores(plugin.score(facts, candidates), candidates)
    if time.monotonic() - started > within:
        raise TimeoutError
    return found


def _write(plugin: Any, *, stream: bool, within: float) -> None:
    started = time.monotonic()
    call = Call(request_id="sample", model="sample", stream=stream, is_sample=True)
    checking.checked_outgoing(plugin.request(sample_body(stream=stream), call))
    reader = plugin.reader(call)
    if not callable(getattr(reader, "whole", None)) or not callable(getattr(reader, "event", None)):
        raise PluginFault("`reader` returns an object with `whole` and `event`")
    if time.monotonic() - started > within:
        raise TimeoutError
