"""HTTP requests from commands to a running gateway: with a key from a file, bounded in time and size."""
# ruff: noqa: PLC0415 - imports stand in the functions, so that `--help` answers at once

import sys
from pathlib import Path
from typing import Any, Final

from gateway.commands.shared import USAGE, fail
from settings.decoding import DECODE_ERRORS

_TIMEOUT_S: Final = 10.0
_MOST_BYTES: Final = 50_000_000
_OK: Final = 200


def key_of(path: Path) -> str:
    """Read the API key from the file, or from standard input for `-`. A key is never passed on a command line."""
    key = (sys.stdin.read(4096) if str(path) == "-" else path.read_text(encoding="utf-8")).strip()
    if not key or not key.isascii() or not key.isprintable():
        fail("--key-file holds no key", USAGE)
    return key


async def asked(url: str, path: str, key: str) -> dict[str, Any]:
    """Return the gateway's answer to GET `path` at `url`; exit the program with the reason when there is none."""
    try:
        return await asked_again(url, path, key)
    except NotAnswered as error:
        fail(str(error), USAGE if error.is_usage else 1)


class NotAnswered(Exception):
    """The error of a gateway that gave no usable answer; the message says why."""

    def __init__(self, message: str, *, is_usage: bool = False) -> None:
        super().__init__(message)
        self.is_usage = is_usage


async def asked_again(url: str, path: str, key: str) -> dict[str, Any]:
    """Ask as `asked` does, for repeated polling: raises NotAnswered instead of exiting."""
    return await exchanged(url, path, key)


async def exchanged(
    url: str, path: str, key: str, *, method: str = "GET", body: Any = None, timeout_s: float = _TIMEOUT_S
) -> dict[str, Any]:
    """Return the gateway's answer to one request. `body` is JSON, or an aiohttp form. Raises NotAnswered."""
    import aiohttp

    check_address(url)
    sent: dict[str, Any] = {"data": body} if isinstance(body, aiohttp.FormData) else {"json": body}
    headers = {"authorization": f"Bearer {key}"}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session,
            session.request(
                method, f"{url.rstrip('/')}{path}", headers=headers, allow_redirects=False, **sent
            ) as reply,
        ):
            status, told = reply.status, b""
            async for chunk in reply.content.iter_chunked(65_536):
                told += chunk
                if len(told) > _MOST_BYTES:
                    raise NotAnswered(f"{url} answered with more than {_MOST_BYTES} bytes; is it a gateway?")
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise NotAnswered(f"the gateway at {url} does not answer ({type(error).__name__})") from error
    return _decoded(url, status, told)


def check_address(url: str) -> None:
    """Raise NotAnswered for what is no gateway's address."""
    if not url.startswith(("http://", "https://")) or "@" in url:
        raise NotAnswered("--url begins with http:// or https://, and has no user", is_usage=True)


def _decoded(url: str, status: int, body: bytes) -> dict[str, Any]:
    import msgspec

    try:
        told: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
    except DECODE_ERRORS as error:
        raise NotAnswered(f"{url} answered with {status} and no JSON; is it a gateway?") from error
    if status != _OK or "object" not in told:
        failure = told.get("error")
        message = failure.get("message") if isinstance(failure, dict) else None
        raise NotAnswered(f"the gateway refused ({status}): {message or 'without a reason'}")
    return told
