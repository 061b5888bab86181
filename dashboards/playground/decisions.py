"""The gateway's choice for a prompt at several minimum qualities. Nothing is called, booked or kept."""

import asyncio
from typing import Final

import msgspec

from accounts.caller import Caller
from api.web.gateway import Gateway
from classifier.asking.location import PLACES
from classifier.asking.resolution import resolve
from dashboards.requests.considered import deciding
from proxy.errors import Refused
from proxy.parse.chat_request import input_tokens, parse_chat, prompt_of
from proxy.parse.headers import RequestHeaders
from proxy.parse.parsed_request import ParsedRequest
from proxy.plan.agreement import pair_for
from proxy.plan.answer_form import asked_form
from proxy.plan.decision_record import Considered, compared
from proxy.plan.route_plan import plan, planned_rooms
from proxy.plan.router import facts_of
from proxy.plan.routing_config import DEFAULT_FLOOR
from proxy.shared.deadline import NO_DEADLINE

FLOORS: Final = (0.90, 0.95, 0.97, 0.99, 1.0)
"""Minimum qualities that are shown beside the team's own."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The choice at one minimum quality. Costs are nano-dollars."""

    floor: float
    is_own: bool
    """True for the one that holds for the team now."""
    most_lost: float = 1.0
    """The most that this prompt may be expected to lose against the baseline model, as a difference of chances."""
    considered: Considered | None = None
    """Comparison of the targets; None where no target could be asked."""
    deciding: str = ""
    two_first: str = ""
    """The two cheap models that would be asked first, and the one to decide where they differ; empty where that is off.
    """
    refusal: str = ""


class Weighed(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt's classification, and the choice at each quality, the lowest first."""

    complexity: float
    ask: str
    """The text taken for the ask, and its place, in words. It is shown and kept nowhere."""
    ask_place: str
    kind: str
    input_tokens: int
    output_tokens: int
    decisions: tuple[Decision, ...]


async def weighed(gateway: Gateway, caller: Caller, body: bytes) -> Weighed:
    """Classify a chat request and plan it at each quality, by what is ready now and as if our own GPUs had room. Raises
    BadRequest.
    """
    return await asyncio.to_thread(_weigh, gateway, caller, body)


def _weigh(gateway: Gateway, caller: Caller, body: bytes) -> Weighed:
    config = gateway.rules()
    request = parse_chat(body, RequestHeaders(tier="interactive"))
    prompt = prompt_of(request)
    parsed = ParsedRequest(
        request=request,
        body=body,
        prompt=prompt,
        input_tokens=input_tokens(request, prompt),
        deadline=NO_DEADLINE,
        parse_escalation=None,
        idempotency_key=None,
    )
    prediction = gateway.classifier.classify(prompt, caller.team_id, learns=False)
    own = caller.settings.quality_floor
    if own is None:
        own = config.policy.quality_floor if config.tolerances is not None else DEFAULT_FLOOR
    fleet = {name: gateway.ready(target) for name, target in config.catalog.targets.items()}
    rooms = planned_rooms(config.policy)
    form = asked_form(request, prompt, prediction.expected_output_tokens)

    def decision(floor: float) -> Decision:
        settings = msgspec.structs.replace(caller.settings, quality_floor=floor)
        facts = facts_of(parsed, msgspec.structs.replace(caller, settings=settings), config, downgraded=False)
        try:
            route = plan(facts, prediction, config.policy, config.catalog, fleet, rooms=rooms)
        except Refused as refused:
            return Decision(floor=floor, is_own=floor == own, most_lost=facts.most_lost, refusal=refused.message)
        found = compared(route)
        pair = None if form is None else pair_for(form, route, facts, prediction, config.catalog)
        return Decision(
            floor=floor,
            is_own=floor == own,
            most_lost=facts.most_lost,
            considered=found,
            deciding=deciding(found, prediction.complexity),
            two_first="" if pair is None else pair.in_words(route),
        )

    asked = resolve(prompt)
    return Weighed(
        complexity=prediction.complexity,
        ask=asked.shown,
        ask_place=PLACES[asked.place],
        kind=prediction.kind,
        input_tokens=parsed.input_tokens,
        output_tokens=prediction.expected_output_tokens,
        decisions=tuple(decision(floor) for floor in sorted({*FLOORS, own})),
    )
