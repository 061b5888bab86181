"""Exporter to Langfuse: a trace and a generation for each finished request, by its ingestion API.

plugins:
  - {name: langfuse, kind: exporter, use: "gateway.exporters.langfuse:Langfuse",
     settings: {host: https://cloud.langfuse.com, public_key: env:LANGFUSE_PUBLIC_KEY, secret_key: env:LANGFUSE_SECRET_KEY}}
"""

import base64
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import aiohttp

from weighbridge.plugins import Outcome

_log: Final = logging.getLogger("weighbridge.plugins")
_PATH: Final = "/api/public/ingestion"
_MOST_TEXT: Final = 8_000
"""Characters of a prompt: Langfuse takes 3.5 MB a batch, which has 200 requests at the most."""
_OK: Final = 207
_NANOUSD: Final = 1_000_000_000


@dataclass(frozen=True)
class Project:
    """The project that requests go to."""

    public_key: str
    secret_key: str
    host: str = "https://cloud.langfuse.com"
    environment: str = "default"


class LangfuseRefused(Exception):
    """Langfuse took none of a batch."""


class Langfuse:
    """Delivers batches. Ids follow from the request, so what comes twice is one."""

    protocol = 1
    Settings = Project

    def __init__(self, settings: Project) -> None:
        self._url = settings.host.rstrip("/") + _PATH
        pair = base64.b64encode(f"{settings.public_key}:{settings.secret_key}".encode()).decode()
        self._headers = {"authorization": f"Basic {pair}"}
        self._environment = settings.environment
        self._session: aiohttp.ClientSession | None = None

    async def finished(self, outcomes: Sequence[Outcome]) -> None:
        """Post a batch. One that is made up goes without its requests: it only asks whether the project's keys work."""
        events = [event for each in outcomes if not each.is_sample for event in self._events(each)]
        session = self._session = self._session or aiohttp.ClientSession(headers=self._headers)
        async with session.post(self._url, json={"batch": events}) as reply:
            if reply.status != _OK and reply.status >= 400:  # noqa: PLR2004
                raise LangfuseRefused(f"status {reply.status}")
            told = await reply.json()
        refused = len(told.get("errors") or ()) if isinstance(told, dict) else 0
        if events and refused >= len(events):
            raise LangfuseRefused("every event of the batch")
        if refused:
            _log.warning("Langfuse refused %d of %d events", refused, len(events))

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _events(self, outcome: Outcome) -> Iterator[dict[str, Any]]:
        began, ended = _time(outcome.ended_at - outcome.duration_s), _time(outcome.ended_at)
        told = {
            "organisation": outcome.organisation_id,
            "team": outcome.team_id,
            "key": outcome.key_id,
            "status": outcome.status,
            "reason": outcome.reason,
            "attempts": outcome.attempts,
            "complexity": outcome.complexity,
        }
        words = None if outcome.text is None else outcome.text[:_MOST_TEXT]
        trace = {
            "id": outcome.request_id,
            "timestamp": began,
            "name": outcome.operation,
            "userId": outcome.end_user or None,
            "tags": [outcome.team_id] if outcome.team_id else [],
            "environment": self._environment,
            "input": words,
            "metadata": told,
        }
        yield _event("trace-create", outcome.request_id, ended, trace)
        if outcome.target_id is None:
            return
        generation = {
            "id": f"{outcome.request_id}-answer",
            "traceId": outcome.request_id,
            "name": outcome.asked_model or outcome.operation,
            "model": outcome.target_id,
            "startTime": began,
            "completionStartTime": None
            if outcome.ttft_s is None
            else _time(outcome.ended_at - outcome.duration_s + outcome.ttft_s),
            "endTime": ended,
            "level": "DEFAULT" if outcome.error_code is None else "ERROR",
            "statusMessage": outcome.error_code,
            "environment": self._environment,
            "input": words,
            "usageDetails": {
                "input": outcome.input_tokens - outcome.cached_input_tokens,
                "cache_read_input_tokens": outcome.cached_input_tokens,
                "output": outcome.output_tokens,
            },
            "costDetails": {} if outcome.cost_nanousd is None else {"total": outcome.cost_nanousd / _NANOUSD},
        }
        yield _event("generation-create", outcome.request_id, ended, generation)


def _event(kind: str, request_id: str, at: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"id": f"{request_id}-{kind}", "type": kind, "timestamp": at, "body": body}


def _time(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()
