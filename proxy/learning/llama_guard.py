"""Ask a model of ours whether texts are safe, as Llama Guard answers: a call like any other, booked to the team whose request it is."""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from accounts.caller import Caller
from cost.errors import BudgetExceeded, BudgetsUnavailable, LedgerUnavailable, UnpricedUnderBudget
from guard.moderation import Call, Direction, OddReply, TooLong, Verdict, calls, together, verdict_in
from providers.catalog import Catalog
from providers.config import RetryConfig, TimeoutsConfig
from providers.errors import UpstreamError
from providers.wire import ChatRequest, Message
from proxy.dispatch.attempt import Attempt
from proxy.dispatch.dispatcher import Dispatcher
from proxy.errors import Refused
from proxy.learning.asking import read_answer, routed_to
from proxy.learning.shadow import answer_of
from proxy.plan.route_plan import Fleet
from proxy.shared.moderation_client import ServiceUnavailable

ALIAS: Final = "guard"
_AT_ONCE: Final = 32
_FAILURES: Final = (
    UpstreamError,
    BudgetExceeded,
    BudgetsUnavailable,
    LedgerUnavailable,
    UnpricedUnderBudget,
)


class TargetRules(msgspec.Struct, frozen=True):
    """The configuration that a reload may change."""

    catalog: Catalog
    fleet: Fleet
    timeouts: TimeoutsConfig
    pools: Mapping[str, str]


class LlamaGuard:
    """Models of ours that judge, for one process."""

    def __init__(self, dispatcher: Dispatcher, rules: Callable[[], TargetRules]) -> None:
        self._dispatcher = dispatcher
        self._rules = rules
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def judge(
        self, caller: Caller, target_id: str, texts: Sequence[str], timeout_s: float, direction: Direction = "input"
    ) -> Verdict:
        """Return what the target says of the texts. Raises ServiceUnavailable."""
        try:
            asked = calls("llama_guard", texts, direction, target_id)
            async with asyncio.timeout(timeout_s):
                # Whoever may not use this model by name is judged by it all the same.
                within = msgspec.structs.replace(caller, allowed_models=None)
                return together(await asyncio.gather(*(self._one(within, target_id, call) for call in asked)))
        except TooLong:
            raise ServiceUnavailable("too_long", "the texts are longer than it is asked about") from None
        except TimeoutError:
            raise ServiceUnavailable("deadline", f"not within {timeout_s * 1000:.0f} ms") from None
        except OddReply as error:
            raise ServiceUnavailable("reply", f"its answer is no verdict: {error}") from None
        except Refused as error:
            raise ServiceUnavailable("connection", f"it is not asked ({error.fault.code})") from None
        except _FAILURES as error:
            raise ServiceUnavailable("connection", f"no answer ({type(error).__name__})") from None

    async def _one(self, caller: Caller, target_id: str, call: Call) -> Verdict:
        fields = msgspec.json.decode(call.body, type=dict[str, msgspec.Raw])
        messages = msgspec.json.decode(fields["messages"], type=list[Message])
        del fields["model"]
        most = msgspec.json.decode(fields["max_tokens"], type=int)
        # What another rule keeps to own engines is judged by none but these.
        request = ChatRequest(fields=fields, model=target_id, messages=messages, max_output_tokens=most, own_only=True)
        async with self._places:
            rules = self._rules()
            routed = routed_to(
                rules,
                caller,
                target_id,
                request,
                # Another one for each: the ledger takes a request's id once.
                request_id=f"guard-{secrets.token_hex(12)}",
                alias=ALIAS,
                tier="interactive",
                retry=RetryConfig(attempts=1),
            )
            attempts: list[Attempt] = []
            events = await read_answer(self._dispatcher, routed, attempts)
        return verdict_in(answer_of([event.payload for event in events]))
