"""Requests of the gateway's own: planned for one named target, sent and booked like any other, read to their end."""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from accounts.caller import Caller
from providers.catalog import Catalog
from providers.config import RetryConfig, TimeoutsConfig
from providers.target import Tier
from providers.wire import ChatRequest, Event
from proxy.dispatch.attempt import Attempt
from proxy.dispatch.dispatcher import Dispatcher, close_quietly
from proxy.dispatch.outcome import CALLER_GONE
from proxy.errors import error_reply
from proxy.parse.chat_request import input_tokens, media_of, most_input_tokens, needs, prompt_of
from proxy.plan.route_plan import Facts, Fleet, Policy, plan
from proxy.plan.routed_request import RoutedRequest

_OK = 200


class AskingRules(Protocol):
    """The configuration that a reload may change."""

    @property
    def catalog(self) -> Catalog: ...
    @property
    def fleet(self) -> Fleet: ...
    @property
    def timeouts(self) -> TimeoutsConfig: ...
    @property
    def pools(self) -> Mapping[str, str]: ...


def routed_to(
    rules: AskingRules,
    caller: Caller,
    target_id: str,
    request: ChatRequest,
    *,
    request_id: str,
    alias: str,
    tier: Tier,
    retry: RetryConfig,
) -> RoutedRequest:
    """Plan a request that names the target, so that the team's model restrictions apply. Raises a refusal."""
    estimate = input_tokens(request, prompt_of(request))
    facts = Facts(
        alias=target_id,
        tier=tier,
        needs=needs(request),
        input_tokens=estimate,
        most_input_tokens=most_input_tokens(
            request, sum(len(bytes(each)) for each in request.fields.values()), estimate
        ),
        media=media_of(request),
        max_output_tokens=request.max_output_tokens,
        allowed_models=caller.allowed_models,
        own_only=request.own_only,
    )
    return RoutedRequest(
        request_id=request_id,
        caller=caller,
        request=request,
        facts=facts,
        plan=plan(facts, None, Policy(), rules.catalog, rules.fleet),
        prediction=None,
        # No caller asked for it, so it cannot save anything.
        comparators=None,
        alias=alias,
        origin="shadow",
        pools=rules.pools,
        timeouts=rules.timeouts,
        retry=retry,
        upstream_headers={},
    )


async def read_answer(dispatcher: Dispatcher, routed: RoutedRequest, attempts: list[Attempt]) -> list[Event]:
    """Send the request and read the whole answer; every attempt is settled in any case."""
    committed = await dispatcher.dispatch(routed, attempts, [])
    attempt, events = committed.attempt, list(committed.events)
    try:
        while (batch := await committed.stream.read()) is not None:
            attempt.observe(batch)
            events += batch
        attempt.close("ok", status=_OK)
    except asyncio.CancelledError:
        attempt.close("shutdown", status=CALLER_GONE)
        raise
    except Exception as error:
        attempt.close("failed", error, status=error_reply(error).status)
        raise
    finally:
        await close_quietly(committed.stream)
    return events
