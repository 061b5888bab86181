"""vLLM's sleep mode over HTTP: routes that an engine has with VLLM_SERVER_DEV_MODE=1 and `--enable-sleep-mode`.

At level 1 the weights go to main memory and the KV cache away, at level 2 both go, and weights are read from the disk again when it
wakes. All of it was read in vLLM 0.32's sources, and its CPU build, which has the routes and moves no memory, was driven by tests.
"""

import json
from typing import Final, Protocol

import msgspec

from selfhosted.engines.fetching import Fetched, FetchFailed
from settings.decoding import DECODE_ERRORS

MOVE_S: Final = 150.0
"""Seconds that an engine may take to move its weights out of its GPUs, or back."""
_ASK_S: Final = 2.0
_MOST_BYTES: Final = 65_536
_OK: Final = 200
_NOT_FOUND: Final = 404
_RELOAD: Final = json.dumps({"method": "reload_weights"}).encode()


class SleepUnknown(Exception):
    """The engine has no sleep routes. The message says what to set."""


class Fetch(Protocol):
    """An HTTP client with the engine's key."""

    async def __call__(self, url: str, *, timeout_s: float, max_bytes: int, with_key: bool = True) -> Fetched: ...

    async def post(self, url: str, body: bytes, *, timeout_s: float, max_bytes: int) -> Fetched: ...


class _Told(msgspec.Struct):
    is_sleeping: bool


async def is_sleeping(fetch: Fetch, origin: str) -> bool:
    """Return whether the engine sleeps. Raises FetchFailed where it does not answer, and SleepUnknown where it cannot sleep."""
    answer = await fetch(f"{origin}/is_sleeping", timeout_s=_ASK_S, max_bytes=_MOST_BYTES)
    if answer.status == _NOT_FOUND:
        raise SleepUnknown(
            f"{origin} has no sleep routes: start it with --enable-sleep-mode, and VLLM_SERVER_DEV_MODE=1 in its environment"
        )
    if answer.status != _OK:
        raise FetchFailed("unreachable", f"/is_sleeping was answered with {answer.status}")
    try:
        return msgspec.json.decode(answer.body, type=_Told).is_sleeping
    except DECODE_ERRORS:
        raise SleepUnknown(f"{origin}/is_sleeping does not say whether it sleeps; is it vLLM?") from None


async def put_to_sleep(fetch: Fetch, origin: str, level: int = 1) -> None:
    """Put the engine to sleep, which frees its GPUs. Requests that it still has are aborted. Raises FetchFailed, also
    for another status than 200.
    """
    await _post(fetch, origin, f"/sleep?level={level}")


async def wake(fetch: Fetch, origin: str, level: int = 1) -> None:
    """Give the engine its GPUs back. Raises FetchFailed; whatever was reached by then, waking it once more goes on from there."""
    if level == 1:
        await _post(fetch, origin, "/wake_up")
        return
    # The cache comes last, so that there is room for the weights beside what reading them takes.
    await _post(fetch, origin, "/wake_up?tags=weights")
    await _post(fetch, origin, "/collective_rpc", _RELOAD)
    await _post(fetch, origin, "/wake_up?tags=kv_cache")


async def _post(fetch: Fetch, origin: str, path: str, body: bytes = b"") -> None:
    answer = await fetch.post(origin + path, body, timeout_s=MOVE_S, max_bytes=_MOST_BYTES)
    if answer.status != _OK:
        raise FetchFailed("unreachable", f"{path} was answered with {answer.status}")
