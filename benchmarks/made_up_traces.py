"""Made-up traces of different character, for comparing balancers on traffic that they were not made for.

Each is repeatable by its seed and arrives as a Poisson process (conversations go on after a pause). The first four are as
dense as eight replicas of the simulator's machine carry at about two fifths of their time; long documents need more, unless
they are found in caches.
"""

import random
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

import msgspec

from planner.simulate.traces import BLOCK_TOKENS, Trace, TraceRequest

_WRITES_PER_S: Final = 40.0
"""Tokens of an answer a second, which a next turn waits for."""


class _Prompt:
    """A prompt that grows at its end. Its whole blocks keep their ids; the last one, which is not whole, gets a new one."""

    def __init__(self, ids: Iterator[int], shared: tuple[int, ...] = ()) -> None:
        self._ids = ids
        self._whole = list(shared)
        self.tokens = len(shared) * BLOCK_TOKENS

    def grow(self, tokens: int) -> None:
        self.tokens += tokens
        while len(self._whole) < self.tokens // BLOCK_TOKENS:
            self._whole.append(next(self._ids))

    def request(self, at_s: float, output_tokens: int) -> TraceRequest:
        rest = (next(self._ids),) if self.tokens % BLOCK_TOKENS else ()
        return TraceRequest(at_s, self.tokens, output_tokens, (*self._whole, *rest))


def _arrivals(rng: random.Random, every_s: float) -> Iterator[float]:
    at_s = 0.0
    while True:
        yield at_s
        at_s += rng.expovariate(1 / every_s)


def _long(rng: random.Random, median: float, spread: float, most: float) -> int:
    """Return a length in tokens, log-normal."""
    return max(16, int(min(most, rng.lognormvariate(0, spread) * median)))


def _instructed(rng: random.Random, ids: Iterator[int]) -> Iterator[TraceRequest]:
    """Make conversations of one question each behind one of sixteen long system prompts, some of them asked for much
    more often.
    """
    prompts = [tuple(next(ids) for _ in range(rng.randint(8, 32))) for _ in range(16)]
    weights = [1 / (place + 1) for place in range(len(prompts))]
    for at_s in _arrivals(rng, 0.06):
        prompt = _Prompt(ids, rng.choices(prompts, weights)[0])
        prompt.grow(_long(rng, 500, 0.8, 8_000))
        yield prompt.request(at_s, _long(rng, 120, 0.7, 1_000))


def _single(rng: random.Random, ids: Iterator[int]) -> Iterator[TraceRequest]:
    """Make conversations of one question each, of which no two begin alike."""
    for at_s in _arrivals(rng, 0.14):
        prompt = _Prompt(ids)
        prompt.grow(_long(rng, 2_500, 1.0, 60_000))
        yield prompt.request(at_s, _long(rng, 200, 0.8, 2_000))


def _chats(rng: random.Random, ids: Iterator[int]) -> Iterator[TraceRequest]:
    """Make conversations of a few turns with half a minute between them, behind one of six short system prompts."""
    prompts = [(next(ids),) for _ in range(6)]
    for at_s in _arrivals(rng, 1.1):
        prompt, now = _Prompt(ids, rng.choice(prompts)), at_s
        for _ in range(1 + min(20, int(rng.expovariate(1 / 5)))):
            prompt.grow(_long(rng, 900, 1.0, 20_000))
            answer = _long(rng, 250, 0.8, 2_000)
            yield prompt.request(now, answer)
            prompt.grow(answer)
            now += answer / _WRITES_PER_S + rng.expovariate(1 / 30)


def _agents(rng: random.Random, ids: Iterator[int]) -> Iterator[TraceRequest]:
    """Make loops of dozens of steps over a context that grows long, seconds apart, all behind one set of tools."""
    tools = tuple(next(ids) for _ in range(6))
    for at_s in _arrivals(rng, 9.0):
        prompt, now = _Prompt(ids, tools), at_s
        prompt.grow(_long(rng, 6_000, 0.8, 30_000))
        for _ in range(rng.randint(8, 40)):
            answer = _long(rng, 120, 0.8, 1_500)
            yield prompt.request(now, answer)
            prompt.grow(answer + _long(rng, 1_200, 1.0, 16_000))
            if prompt.tokens > 120_000:
                break
            now += answer / _WRITES_PER_S + rng.expovariate(1 / 4)


def _bursts(rng: random.Random, ids: Iterator[int]) -> Iterator[TraceRequest]:
    """Make dozens of questions at a time, within two seconds, about a text that nobody sent before."""
    for at_s in _arrivals(rng, 4.0):
        text = tuple(next(ids) for _ in range(rng.randint(8, 48)))
        for _ in range(rng.randint(8, 48)):
            prompt = _Prompt(ids, text)
            prompt.grow(_long(rng, 200, 0.8, 2_000))
            yield prompt.request(at_s + rng.uniform(0, 2), _long(rng, 150, 0.7, 1_000))


def _documents(rng: random.Random, ids: Iterator[int]) -> Iterator[TraceRequest]:
    """Make short questions about one of 64 long documents, some of which are asked about much more often."""
    texts = [tuple(next(ids) for _ in range(rng.randint(24, 160))) for _ in range(64)]
    weights = [1 / (place + 1) for place in range(len(texts))]
    for at_s in _arrivals(rng, 0.15):
        prompt = _Prompt(ids, rng.choices(texts, weights)[0])
        prompt.grow(_long(rng, 150, 0.8, 2_000))
        yield prompt.request(at_s, _long(rng, 200, 0.8, 2_000))


def _mixed(rng: random.Random, ids: Iterator[int]) -> Iterator[TraceRequest]:
    """Make all other kinds at once, each a part of its usual rate."""
    drawn = [draw(rng, ids) for name, draw in KINDS.items() if name != "mixed"]
    last = [0.0] * len(drawn)
    while True:
        # Whoever is behind goes on, so that all kinds last equally long.
        at = last.index(min(last))
        request = next(drawn[at])
        last[at] = max(last[at], request.at_s)
        yield msgspec.structs.replace(request, at_s=request.at_s * len(drawn))


KINDS: Final[dict[str, Callable[[random.Random, Iterator[int]], Iterator[TraceRequest]]]] = {
    "instructed": _instructed,
    "single": _single,
    "chats": _chats,
    "agents": _agents,
    "bursts": _bursts,
    "documents": _documents,
    "mixed": _mixed,
}


def made_up(kind: str, seed: int, requests: int) -> Trace:
    """Return the trace of a kind in `KINDS`; KeyError for another name. Twice the requests are drawn, so that conversations that
    begin early have gone on when the last one that counts arrives.
    """
    rng, drawn = random.Random(f"{kind}/{seed}"), KINDS[kind]
    found = [each for each, _ in zip(drawn(rng, count()), range(2 * requests), strict=False)]
    found.sort(key=lambda each: each.at_s)
    first = found[0].at_s
    moved = tuple(msgspec.structs.replace(each, at_s=each.at_s - first) for each in found[:requests])
    return Trace(f"{kind} {seed}", "mooncake", moved)
