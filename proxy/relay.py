"""Relay stage: turns a committed stream into the caller's reply.

Payloads go through as the bytes they came in; `model_used` is spliced in behind each one's first
brace. Nothing falls back from here: what fails now ends the stream with an error event.
"""

import asyncio
import contextlib
from collections.abc import Iterable

import msgspec

from cost.usage import Usage
from providers.errors import UpstreamError
from providers.wire import Event, fields_of
from proxy.attempt import Attempt
from proxy.context import RequestContext
from proxy.dispatch import Committed, close_quietly
from proxy.ending import CALLER_GONE
from proxy.errors import DeadlineExceeded, error_reply
from proxy.reply import Header, Reply
from proxy.reply_headers import decision_headers, dollars, money_headers
from selfhosted.prefixes.tracker import PrefixTracker
from selfhosted.rendering import instructions

_DONE = b"data: [DONE]\n\n"
_FOREVER = contextlib.nullcontext()


async def relay_answer(context: RequestContext, committed: Committed, habits: PrefixTracker | None) -> None:
    """Writes the whole reply, and closes the attempt with its ending.

    Raises UpstreamError or DeadlineExceeded when it failed before the reply began. A later failure is reported to the
    caller in an error event in place of `[DONE]`.
    """
    attempt, reply = committed.attempt, context.reply
    try:
        if habits is not None:
            _note_habit(habits, attempt)
        headers = decision_headers(
            context.attempts, attempt, weakness=context.weakness, escalated_from=context.escalated_from
        )
        if attempt.routed.request.stream:
            await _relay_stream(committed, reply, headers)
        else:
            await _relay_whole(committed, reply, headers)
    except (UpstreamError, DeadlineExceeded) as error:
        told = error_reply(error)
        attempt.close("failed", error, status=reply.status or told.status)
        if not reply.started:
            # Nothing is written yet, so it is told like any other failure.
            raise
        context.end("failed")
        context.error_code = told.code
    except asyncio.CancelledError:
        # What arrived and was not read yet was made, and costs.
        attempt.observe(committed.stream.unread())
        attempt.close(context.ending, status=CALLER_GONE)
        raise
    except Exception as error:
        attempt.close("failed", error, status=500)
        raise
    finally:
        # A reply that went well was settled before its last bytes left; this only gives the connection back.
        await close_quietly(committed.stream)


def _note_habit(habits: PrefixTracker, attempt: Attempt) -> None:
    """Records the team's prompt prefix for the report on cache use."""
    routed, caller = attempt.routed, attempt.routed.caller
    if prefix := instructions(routed.request):
        target_id, tokens = attempt.deployment.target_id, routed.facts.input_tokens
        habits.observe(caller.organisation_id, caller.team_id, target_id, prefix, tokens)


async def _relay_whole(committed: Committed, reply: Reply, headers: list[Header]) -> None:
    attempt = committed.attempt
    events = committed.events
    while (batch := await committed.stream.read()) is not None:
        attempt.observe(batch)
        events += batch
    usage, cost_nanousd, baseline_nanousd = attempt.preview()
    money = money_headers(cost_nanousd, baseline_nanousd)
    fields = _own_fields(attempt.deployment.target_id, usage, cost_nanousd, baseline_nanousd)
    await _book(attempt)
    await reply.whole(200, _splice(fields, events[-1].payload), [*headers, *money])


async def _relay_stream(committed: Committed, reply: Reply, headers: list[Header]) -> None:
    attempt = committed.attempt
    deadline = attempt.routed.deadline
    writer = _EventWriter(attempt)
    await reply.begin_events(headers)
    try:
        async with asyncio.timeout(deadline.remaining_s(reply.now)) if deadline.cuts_streams else _FOREVER:
            await _relay_events(committed, reply, writer)
    except UpstreamError as error:
        await reply.end(b"data: " + error_reply(error).body + b"\n\n")
        raise
    except TimeoutError:
        exceeded = deadline.exceeded()
        # Settled first: its caller may read no more, and the end of its stream has to wait for it.
        attempt.close("failed", exceeded, status=200)
        await reply.end(b"data: " + error_reply(exceeded).body + b"\n\n")
        raise exceeded from None
    await _book(attempt)
    await reply.end(writer.last_words() + _DONE)


async def _relay_events(committed: Committed, reply: Reply, writer: "_EventWriter") -> None:
    batch: list[Event] | None = committed.events
    while batch is not None:
        data = writer.render(batch)
        if data:
            await reply.events(data)
        batch = await committed.stream.read()
        if batch is not None:
            committed.attempt.observe(batch)


async def _book(attempt: Attempt) -> None:
    """Settles before the last bytes are sent, so that a caller with a whole answer finds it in the ledger even after a
    crash.
    """
    attempt.close("ok", status=200)
    # The journal is written once a turn of the event loop; by the next turn the kernel has the entry.
    await asyncio.sleep(0)


class _EventWriter:
    """Renders events as SSE bytes. The usage chunk is held back, as the caller may not have asked for it."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._wants_usage = attempt.routed.request.include_usage
        self._prefix = b'data: {"model_used":' + msgspec.json.encode(attempt.deployment.target_id) + b","
        self._usage_event: Event | None = None
        self._template: bytes | None = None

    def render(self, events: Iterable[Event]) -> bytes:
        parts: list[bytes] = []
        for event in events:
            payload = event.payload
            if event.usage is not None:
                self._usage_event = event
                if not event.choices:
                    continue
                # Usage beside content was our wish; the caller gets it once, at the end, if it asked.
                payload = _without_usage(payload)
            if self._template is None:
                self._template = payload
            parts += (self._prefix, payload[1:], b"\n\n")
        return b"".join(parts)

    def last_words(self) -> bytes:
        """The closing usage chunk for a caller that asked for one, with the cost; from estimates when the upstream sent
        none.
        """
        if not self._wants_usage:
            return b""
        usage, cost_nanousd, baseline_nanousd = self._attempt.preview()
        fields = _own_fields(self._attempt.deployment.target_id, usage, cost_nanousd, baseline_nanousd)
        if self._usage_event is not None:
            payload = _without_choices(self._usage_event.payload)
        else:
            payload = _usage_chunk(self._template, usage)
        return b"data: " + _splice(fields, payload) + b"\n\n"


def _splice(fields: bytes, payload: bytes) -> bytes:
    """Inserts our fields in front of an upstream object's own. Both are JSON objects."""
    rest = payload[payload.index(b"{") + 1 :].lstrip()
    return fields[:-1] + (b"," if rest != b"}" else b"") + rest


def _own_fields(target_id: str, usage: Usage, cost_nanousd: int | None, baseline_nanousd: int | None) -> bytes:
    return msgspec.json.encode(
        {
            "model_used": target_id,
            "weighbridge": {
                "cost_usd": dollars(cost_nanousd),
                "baseline_usd": dollars(baseline_nanousd),
                "usage_source": usage.source,
            },
        }
    )


def _without_usage(payload: bytes) -> bytes:
    fields = fields_of(payload)
    fields.pop("usage", None)
    return msgspec.json.encode(fields)


def _without_choices(payload: bytes) -> bytes:
    fields = fields_of(payload)
    fields["choices"] = msgspec.Raw(b"[]")
    return msgspec.json.encode(fields)


def _usage_chunk(template: bytes | None, usage: Usage) -> bytes:
    """Builds a usage chunk with estimated tokens in the form of the stream's other chunks."""
    fields = fields_of(template) if template else {}
    head = {name: fields[name] for name in ("id", "object", "created", "model") if name in fields}
    tokens = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
    return msgspec.json.encode({**head, "choices": [], "usage": tokens})
