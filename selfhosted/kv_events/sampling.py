"""Tokenizes a few prompts at their engine, rarely and outside the request path.

The gateway has no tokenizer; the engine's own `POST /tokenize` also applies its chat template.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal, Protocol

import msgspec

from providers.wire import ChatRequest
from selfhosted.kv_events.chains import Chains

_TOKENIZED: Final = ("messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")
_UNSUPPORTED: Final = frozenset({"functions", "chat_template", "documents", "reasoning_effort", "mm_processor_kwargs"})
"""Request fields with which the engine's prompt differs from what /tokenize makes of the rest."""
_MOST_BODY_BYTES: Final = 1_000_000
_GIVE_UP_AFTER: Final = 5


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt whose first token has come, so that its engine holds its blocks."""

    replica: str
    url: str
    """The replica's `http(s)://host:port`."""
    blocks: tuple[int, ...]
    """The prompt's blocks, as the balancer hashes them."""
    block_bytes: int
    rendered_bytes: int
    """Length of the whole rendered prompt in bytes. A prompt that was cut off must not be offered."""
    body: bytes | Callable[[], bytes | None]
    """Body for /tokenize, or a function that builds it when its turn comes; None: this prompt must not be tokenized."""
    adapter: str | None = None
    salt: str | None = None


SampleResult = Literal["learned", "unseen", "failed", "passed_over", "known"]
"""Outcome of a sample. `learned`: its blocks were mapped; `unseen`: the engine reported no such block; `failed`:
/tokenize failed; `passed_over`: too many samples at once; `known`: it would have taught nothing."""


class Tokenize(Protocol):
    """Function that tokenizes a prompt at an engine."""

    async def __call__(self, url: str, body: bytes) -> Sequence[int]:
        """Return the prompt's token ids. Raises TokenizeFailed."""
        ...


class TokenizeFailed(Exception):
    """The engine returned no tokens."""


class SampleLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the rate and number of tokenized prompts."""

    waiting: int = 32
    per_s: float = 5.0
    settle_s: float = 0.25
    """Delay before tokenizing, so that the engine's events for the prompt arrive first."""
    pause_s: float = 60.0
    """Pause after several failures in a row."""


class Sampling:
    """A short queue of prompts for /tokenize. `offer` never waits; `run` does the requests."""

    def __init__(
        self,
        chains: Chains,
        tokenize: Tokenize,
        *,
        counted: Callable[[SampleResult], None] = lambda _result: None,
        limits: SampleLimits = SampleLimits(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._chains = chains
        self._tokenize = tokenize
        self._counted = counted
        self._limits = limits
        self._clock = clock
        self._sleep = sleep
        self._waiting: deque[tuple[float, Sample]] = deque()
        self._offered = asyncio.Event()
        self._failures = 0
        self._paused_until = 0.0

    def offer(self, sample: Sample) -> None:
        """Queue a sample, or count it as known or passed over. Takes a few microseconds."""
        if self._chains.knows(sample.blocks):
            self._counted("known")
        elif len(self._waiting) >= self._limits.waiting or self._clock() < self._paused_until:
            self._counted("passed_over")
        else:
            self._waiting.append((self._clock() + self._limits.settle_s, sample))
            self._offered.set()

    async def run(self) -> None:
        """Tokenize queued samples until it is cancelled."""
        while True:
            await self._offered.wait()
            while self._waiting:
                due, sample = self._waiting.popleft()
                await self._sleep(max(0.0, due - self._clock()))
                await self._tokenize_sample(sample)
                await self._sleep(1 / self._limits.per_s)
            self._offered.clear()

    async def _tokenize_sample(self, sample: Sample) -> None:
        if self._chains.knows(sample.blocks):
            # Another one of the same beginning was asked for meanwhile.
            self._counted("known")
            return
        body = sample.body() if callable(sample.body) else sample.body
        if body is None:
            self._counted("passed_over")
            return
        try:
            tokens = await self._tokenize(sample.url, body)
        except TokenizeFailed:
            self._count_failure()
            return
        self._failures = 0
        a_byte = len(tokens) / max(1, sample.rendered_bytes)
        ends = [at * sample.block_bytes * a_byte for at in range(1, len(sample.blocks) + 1)]
        mapped = self._chains.learn(
            sample.replica, tokens, sample.blocks, ends, adapter=sample.adapter, salt=sample.salt
        )
        self._counted("learned" if mapped else "unseen")

    def _count_failure(self) -> None:
        self._counted("failed")
        self._failures += 1
        if self._failures >= _GIVE_UP_AFTER:
            self._failures = 0
            self._paused_until = self._clock() + self._limits.pause_s
            self._waiting.clear()


def tokenize_body(model: str, request: ChatRequest) -> bytes | None:
    """Return the body of /tokenize for a chat request; None when the engine's prompt would differ from what /tokenize
    makes of it, or the body is too long.
    """
    if request.images or not _UNSUPPORTED.isdisjoint(request.fields):
        return None
    asked: dict[str, object] = {name: request.fields[name] for name in _TOKENIZED if name in request.fields}
    body = msgspec.json.encode({"model": model, **asked})
    return body if len(body) <= _MOST_BODY_BYTES else None
