"""The thoughts of an assistant's earlier turns, and who is given them again: models that think in a loop of tools go on from them,
and some refuse the loop without. The table is `data/thoughts.toml`. Pure.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from providers.target import Deployment, DeploymentKind

FIELDS: Final = ("reasoning_content", "reasoning", "reasoning_details")
"""The fields of a message that hosts write thoughts in."""
EXTRAS: Final = ("extra_content", "provider_specific_fields")
"""The fields of a call in which hosts sign the thought behind it."""


class Thought(msgspec.Struct, frozen=True, omit_defaults=True):
    """The thought behind one message of an assistant."""

    target_id: str = ""
    """The target that had it; empty where nobody knows."""
    said: dict[str, Any] = {}
    """The message's fields, of `FIELDS`, as they came."""
    calls: dict[str, dict[str, Any]] = {}
    """The calls' fields, of `EXTRAS`, by call id."""

    @property
    def text(self) -> str:
        return text_of(self.said)


def text_of(said: Mapping[str, Any]) -> str:
    """Return the words of a thought, under whichever of its names they came."""
    for name in ("reasoning_content", "reasoning"):
        if isinstance(said.get(name), str) and said[name]:
            return str(said[name])
    details = said.get("reasoning_details")
    parts = [each for each in details if isinstance(each, dict)] if isinstance(details, list) else []
    texts = [part.get("text") or part.get("summary") for part in parts]
    return "".join(each for each in texts if isinstance(each, str))


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: str
    read: Any
    kinds: list[DeploymentKind] = []
    hosts: list[str] = []
    models: str = ""
    fields: list[str] = []
    missing: str | None = None
    signature: dict[str, Any] = {}


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    takes: list[_Row]


_ROWS: Final = msgspec.convert(
    tomllib.loads(Path(__file__).with_name("data").joinpath("thoughts.toml").read_text(encoding="utf-8")), _Table
).takes
_NONE: Final = _Row(source="", read=None)


def needs_thoughts(deployment: Deployment) -> bool:
    """Return True where something has to stand for thoughts that nobody knows."""
    row = _row_of(deployment.kind, deployment.base_url, deployment.upstream_model)
    return row.missing is not None or bool(row.signature)


@lru_cache(maxsize=1_024)
def _row_of(kind: DeploymentKind, base_url: str, model: str) -> _Row:
    host = urlsplit(base_url).hostname or ""
    for row in _ROWS:
        at_home = kind in row.kinds or any(
            host == each or host.endswith((f".{each}", f"-{each}")) for each in row.hosts
        )
        if at_home and re.search(row.models, model.lower()):
            return row
    return _NONE


def with_thoughts(messages: list[Any], thoughts: Mapping[int, Thought], deployment: Deployment) -> None:
    """Give the assistant's messages, by their number among its own, the thoughts that the deployment takes."""
    row = _row_of(deployment.kind, deployment.base_url, deployment.upstream_model)
    number = -1
    for message in messages:
        if not isinstance(message, dict) or message.get("role") != "assistant":
            continue
        number += 1
        thought = thoughts.get(number)
        calls = [call for call in message.get("tool_calls") or () if isinstance(call, dict)]
        is_its_own = thought is not None and thought.target_id == deployment.target_id
        if thought is not None and is_its_own:
            message.update(thought.said)
        elif thought is not None and (text := thought.text):
            message.update(dict.fromkeys(row.fields, text))
        if calls:
            _sign(calls, thought if is_its_own or row.signature else None, row)
            if row.missing is not None and not any(message.get(name) for name in FIELDS):
                message.update(dict.fromkeys(row.fields, row.missing))


def _sign(calls: list[dict[str, Any]], thought: Thought | None, row: _Row) -> None:
    signed = {} if thought is None else thought.calls
    for call in calls:
        call.update(signed.get(str(call.get("id")), {}))
    if row.signature and not any(call.get(name) for call in calls for name in EXTRAS):
        calls[0].update(row.signature)
