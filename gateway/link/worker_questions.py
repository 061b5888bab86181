"""Questions and messages of the control plane to its workers, beside the fleet's, and a worker's answers."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from gateway.link.codec import Question, Vocabulary
from gateway.link.connection import Handlers
from gateway.link.link import Hello, Synced
from gateway.link.questions import QUESTIONS
from proxy.admin.worker_report import WorkerReport
from proxy.admit.limits.limit import Limit, Remaining
from proxy.plan.overruns import Overrun
from proxy.plan.refused_parameters import Refused
from proxy.settle.findings.counting import FindingsTold
from proxy.settle.refusals.counting import RefusalsTold
from proxy.settle.traffic.counting import TrafficTold
from selfhosted.health.host_messages import FROM_PROCESS, TO_FLEET


class ReadReport(Question[WorkerReport], frozen=True):
    """The worker as it is now."""


class PeekLimits(Question[list[Remaining]], frozen=True):
    """The state of these limits, in the same order."""

    limits: list[Limit]


class Reprice(Question[None], frozen=True):
    """An order to bring prices that were entered into effect."""


class WriteDown(Question[None], frozen=True):
    """An order to hand over the worker's counts and its rows for learning."""


class CountsTold(msgspec.Struct, frozen=True):
    """A worker's counts by minute, each since a mark of its own."""

    refusals: RefusalsTold
    traffic: TrafficTold
    findings: FindingsTold

    @property
    def marks(self) -> tuple[int, int, int]:
        """The marks to ask further from."""
        return self.refusals.mark, self.traffic.mark, self.findings.mark


class ReadCounts(Question[CountsTold], frozen=True):
    """A question for counts since the marks that were told last; `after` has the marks by boot id."""

    after: dict[str, tuple[int, int, int]]


class ResponseQueued(msgspec.Struct, frozen=True):
    """A worker has put a response off, which the control plane makes."""


class ProcessesCounted(msgspec.Struct, frozen=True):
    """The number of serving processes of all hosts."""

    live: int


class SetAside(msgspec.Struct, frozen=True):
    """Targets that hard budgets pass over: a worker's news of one, or the control plane's of all."""

    overruns: dict[str, Overrun]


class ParametersRefused(msgspec.Struct, frozen=True):
    """Parameters that targets refused by their names: a worker's news of one, or the control plane's of all."""

    refused: tuple[Refused, ...]


VOCABULARY: Final = Vocabulary(
    (
        Hello,
        Synced,
        *QUESTIONS,
        ReadReport,
        PeekLimits,
        Reprice,
        WriteDown,
        ReadCounts,
        CountsTold,
        ResponseQueued,
        ProcessesCounted,
        SetAside,
        ParametersRefused,
        *TO_FLEET,
        *FROM_PROCESS,
    )
)
"""All that travels between the planes."""


def answer_of_itself(
    handlers: Handlers,
    *,
    report: Callable[[], WorkerReport],
    peek: Callable[[tuple[Limit, ...]], Awaitable[tuple[Remaining, ...]]],
    reprice: Callable[[], Awaitable[None]],
    write_down: Callable[[], Awaitable[None]],
    counts: Callable[[Mapping[str, tuple[int, int, int]]], CountsTold],
) -> None:
    """Answer the control plane's questions in a worker."""

    async def told(_from: object, _asked: ReadReport) -> WorkerReport:
        return report()

    async def peeked(_from: object, asked: PeekLimits) -> list[Remaining]:
        return list(await peek(tuple(asked.limits)))

    async def counted(_from: object, asked: ReadCounts) -> CountsTold:
        return counts(asked.after)

    handlers.when_asked(ReadReport, told)
    handlers.when_asked(PeekLimits, peeked)
    handlers.when_asked(ReadCounts, counted)
    handlers.when_asked(Reprice, lambda _from, _asked: reprice())
    handlers.when_asked(WriteDown, lambda _from, _asked: write_down())
