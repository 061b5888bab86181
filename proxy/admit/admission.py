"""Admission control: the one door between a parsed request and its plan. Load shedding, rate limits, budgets and idempotent replay."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from accounts.caller import Caller
from cost.budgets.budget_reservations import BudgetCheck
from providers.wire import ChatRequest
from proxy.admit.idempotency.claims import Idempotency, Replay, fingerprint_of
from proxy.admit.idempotency.recording import Recording, replay
from proxy.admit.limits.limit import Admission, Limiter
from proxy.admit.load_shedding import OverloadGuard
from proxy.errors import error_reply
from proxy.http.exchange import Exchange
from proxy.http.reply import Reply
from proxy.http.request_id import REQUEST_ID_HEADER
from proxy.parse.chat_request import AUTO, DEFAULT_OUTPUT_TOKENS, is_replaceable
from proxy.parse.headers import is_batch
from proxy.parse.parsed_request import ParsedRequest
from proxy.parse.wires.wire import Wire


class BudgetGate(Protocol):
    """A process-local view of the budgets, read without I/O. The money itself is held when an attempt reserves."""

    def check(self, organisation_id: str, team_id: str, key_id: str, tag: str) -> BudgetCheck: ...


class BudgetLook(NamedTuple):
    """The state of the budgets that a request falls under."""

    downgraded: bool = False
    """True where a spent budget sends the request to the cheapest capable target."""
    bounded: bool = False
    """True where a hard budget holds money for it."""


class AdmissionControl:
    """The parts that may refuse or repeat a request before it is planned. Queues follow once a target is known."""

    def __init__(
        self,
        limiter: Limiter,
        *,
        budgets: BudgetGate | None = None,
        load_shedding: OverloadGuard | None = None,
        idempotency: Idempotency | None = None,
        record_shed: Callable[[], None] = lambda: None,
    ) -> None:
        """`record_shed` is called for each request that load shedding refuses."""
        self._limiter = limiter
        self._budgets = budgets
        self._load_shedding = load_shedding
        self._idempotency = idempotency
        self._record_shed = record_shed

    def sheds(self, *, batch: bool) -> bool:
        """Return True while a request of this tier is refused because the process is overloaded."""
        return self._load_shedding is not None and not self._load_shedding.admits(batch=batch)

    def shed(self, wire: Wire, exchange: Exchange, request_id: str) -> bool:
        """Refuse a request of an overloaded process, and return True; return False where it may go on."""
        guard = self._load_shedding
        # The tier is looked for only while some are refused.
        if guard is None or not guard.guarding or guard.admits(batch=is_batch(exchange.headers)):
            return False
        self._record_shed()
        guard.refuse(
            exchange, wire.error(error_reply(guard.refusal()), request_id), (REQUEST_ID_HEADER, request_id.encode())
        )
        return True

    async def take(self, caller: Caller, parsed: ParsedRequest, reply: Reply) -> Admission:
        """Take the request's estimated tokens from its rate limits, and add the `x-ratelimit-*` headers to its reply; settling
        refunds unused ones.

        Raises RateLimited.
        """
        request = parsed.request
        unbounded = request.max_output_tokens is None and request.operation == "chat"
        guessed = DEFAULT_OUTPUT_TOKENS * request.n if unbounded else 0
        answer = (request.max_output_tokens or 0) * request.n + guessed
        admission = await self._limiter.admit(
            caller, request.alias or request.model, parsed.input_tokens + answer, guessed=guessed
        )
        reply.lines += admission.lines
        return admission

    def look_at_budgets(self, caller: Caller, request: ChatRequest) -> BudgetLook:
        """Check the budgets, and return their effect on the request. Raises BudgetExceeded."""
        if self._budgets is None:
            return BudgetLook()
        known = self._budgets.check(caller.organisation_id, caller.team_id, caller.key_id, request.tag)
        if known.exceeded is not None:
            raise known.exceeded
        return BudgetLook(known.downgrade and request.model != AUTO and is_replaceable(request), known.hard)

    def is_bounded(self, caller: Caller, request: ChatRequest) -> bool:
        """Return True where a hard budget holds the most that the request may cost, or is spent."""
        if self._budgets is None:
            return False
        known = self._budgets.check(caller.organisation_id, caller.team_id, caller.key_id, request.tag)
        return known.hard or known.exceeded is not None

    async def replays(
        self,
        key: str,
        body: bytes,
        caller: Caller,
        exchange: Exchange,
        reply: Reply,
        request_id: str,
        is_kept: Callable[[int], bool],
    ) -> bool:
        """Replay the kept answer of an Idempotency-Key and return True; else begin to record this reply and return False.

        `is_kept` tells, by the status of the complete reply, whether it is final for the key.
        Raises BadRequest, KeyReused, KeyInFlight, AnswerNotKept, TooManyKeys or IdempotencyUnavailable.
        """
        if self._idempotency is None:
            return False
        fingerprint = fingerprint_of(exchange.path, exchange.headers, body)
        found = await self._idempotency.claim(caller.team_id, key, fingerprint, request_id)
        if isinstance(found, Replay):
            await replay(reply, found)
            return True
        reply.recording = Recording(found, is_kept)
        return False
