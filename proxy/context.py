"""The request context: all that is known of one request, from its first byte to its end."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
from starlette.types import Send

from accounts.caller import Caller
from classifier.prediction import Prompt
from providers.wire import Operation
from proxy.answers.weak_answer import Weakness
from proxy.attempt import Attempt
from proxy.ending import Ending
from proxy.idempotency.recording import Recording
from proxy.limits.limit import Admission
from proxy.observers.telemetry import RequestTrace
from proxy.pipeline_config import PipelineConfig
from proxy.reply import Reply
from proxy.request_id import REQUEST_ID_HEADER
from proxy.routed_request import RoutedRequest

Cut = Literal["caller_gone", "slow_upload", "slow_reader", "cut_off"]
"""Why a request is ended from outside: its caller hung up; its body came too slowly, or its caller reads too slowly; or
the process has to stop.
"""
EndedBy = Literal["answered", "failed", "cancelled"] | Cut
"""`answered` is a whole reply, also one that is given again; `failed` told an error in its place, or in place of its
end; `cancelled` is the server ending the task by itself.
"""

_CUT_SHORT: Final = frozenset({"caller_gone", "slow_reader", "cut_off"})
"""Nobody waits for an answer any more. A slow upload is told an error like any other."""
_ENDINGS: Final[dict[EndedBy | None, Ending]] = {"slow_reader": "slow_reader", "caller_gone": "caller_gone"}


class RequestContext(msgspec.Struct, eq=False, kw_only=True):
    """The stages write down what they learn; the outcome is made from it at the end, however the request ends."""

    request_id: str
    operation: Operation
    reply: Reply
    started_at: float
    config: PipelineConfig
    """As it stood when the request came. A reload does not change it."""
    task: asyncio.Task[Any]
    trace: RequestTrace | None = None
    caller: Caller | None = None
    reading_since: float | None = None
    """Set while its body is read."""
    prompt: Prompt | None = None
    recording: Recording | None = None
    """It has an Idempotency-Key, so it runs to its end also when its caller does not wait for it."""
    admission: Admission | None = None
    classify_s: float | None = None
    routed: RoutedRequest | None = None
    attempts: list[Attempt] = []
    answering: Attempt | None = None
    """The one that the caller is given."""
    judged: bool = False
    weakness: Weakness | None = None
    escalated_from: str | None = None
    """The target whose weak answer is not given."""
    released_at: float | None = None
    """When an answer that was held back went out."""
    ended_by: EndedBy | None = None
    """None while it runs."""
    error_code: str | None = None

    def end(self, by: EndedBy) -> None:
        """Notes how it ended. The first word counts: what follows is only how that is told."""
        if self.ended_by is None:
            self.ended_by = by

    def cut(self, why: Cut) -> None:
        """Ends it from outside. It may be telling its failure by then, which is cut short just the same."""
        if not self.was_cut_short:
            self.ended_by = why
        self.task.cancel()

    @property
    def was_cut_short(self) -> bool:
        return self.ended_by in _CUT_SHORT

    @property
    def ending(self) -> Ending:
        """How an attempt ends that is cancelled now, in the books' words."""
        return _ENDINGS.get(self.ended_by, "shutdown")


def new_context(
    request_id: str, operation: Operation, send: Send, clock: Callable[[], float], config: PipelineConfig
) -> RequestContext:
    """The context of a request that the running task serves. Its reply says the request's id, whatever else it says."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101  # A server runs each request in a task.
    reply = Reply(send, clock)
    reply.headers.append((REQUEST_ID_HEADER, request_id.encode()))
    return RequestContext(
        request_id=request_id,
        operation=operation,
        reply=reply,
        started_at=reply.now,
        config=config,
        task=task,
    )
