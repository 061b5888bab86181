"""The log of the scripted server: one line when a request arrives, one when its reply is over."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the log: `arrived` when the request was read, `ended` or `cut` when its reply was over."""

    event: Literal["arrived", "ended", "cut"]
    request_id: str
    model: str
    stream: bool
    prompt_tokens: int
    completion_tokens: int


Write = Callable[[LogLine], None]


def read_log(path: Path) -> list[LogLine]:
    """Return the log's lines so far."""
    return [msgspec.json.decode(line, type=LogLine) for line in path.read_bytes().splitlines()]
