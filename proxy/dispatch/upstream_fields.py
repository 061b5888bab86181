"""Headers that the gateway adds, body fields that it sets in place of the caller's, and those that a target cannot take.

For engines of our own: the team, the time that is left, scheduling priority, and the salt that separates prefix caches. For all: the longest answer, and
the provider's service tier.
"""

import math
from collections.abc import Callable, Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Final

from accounts.caller import Caller
from providers.parameters import LENGTHS, MINOR, NOTES, beside_each_other, is_said
from providers.target import Deployment, Target
from providers.upstream import UpstreamCall
from providers.wire import speaks_anthropic
from proxy.plan.cache_control import pays
from proxy.plan.route_plan import longest_answer
from proxy.plan.routed_request import RoutedRequest
from proxy.shared.deadline import MOST_TIMEOUT_MS, TIMEOUT_HEADER

FAIRNESS_HEADER: Final = "x-llm-d-inference-fairness-id"
TTFT_HEADER: Final = "x-llm-d-slo-ttft-ms"
_NOTHING: Final[Mapping[str, int | str]] = MappingProxyType({})
_BATCH: Final = 10
_NOBODY_WAITS: Final = 20
"""The priority of work that no caller waits for: shadow requests and judging."""


def upstream_call(
    target: Target,
    deployment: Deployment,
    routed: RoutedRequest,
    now: float,
    *,
    reaches: Callable[[bool], None],
    drops: Callable[[str], None],
    read: Mapping[str, Any] | None = None,
) -> UpstreamCall:
    """Return the call of an attempt that is made at `now`. The upstream client calls `reaches` with True once there
    is a connection, and `drops` with each parameter that it leaves out. `read` are the fields that fetch the prompt
    where it was read before.
    """
    request, reuse, timeouts, own = routed.request, routed.reuse, routed.timeouts, deployment.timeouts
    marks = reuse is not None and speaks_anthropic(deployment) and pays(reuse, target.target_id, target.price)
    fields = call_fields(target, deployment, routed)
    return UpstreamCall(
        deployment=deployment,
        request=request,
        request_id=routed.request_id,
        connect_timeout_s=own.connect_s or timeouts.connect_s,
        idle_timeout_s=own.idle_s or timeouts.idle_s,
        total_timeout_s=routed.deadline.total_timeout_s(now, own.total_s or timeouts.total_s, stream=request.stream),
        headers=call_headers(target, routed, now),
        engine_fields={**fields, **read} if read else fields,
        marks_cache=marks,
        dropped=left_out_fields(target, routed),
        reaches=reaches,
        drops=drops,
    )


def engine_fields(deployment: Deployment, routed: RoutedRequest) -> Mapping[str, int | str]:
    """Return the extra body fields that vLLM reads; empty for an engine not configured for them."""
    if not deployment.priority_scheduling and deployment.cache_isolation == "none":
        return _NOTHING
    fields: dict[str, int | str] = {}
    if deployment.priority_scheduling:
        fields["priority"] = engine_priority(routed)
    if salt := cache_salt(deployment, routed.caller):
        fields["cache_salt"] = salt
    return fields


def call_fields(target: Target, deployment: Deployment, routed: RoutedRequest) -> Mapping[str, int | str]:
    """Return all fields to set for a call: those of an engine, the longest answer where it is not the caller's own, and
    the service tier where the target's provider sells it.
    """
    fields = engine_fields(deployment, routed)
    facts = routed.facts
    lacks = facts.lacking(target)
    tier = facts.service_tier if facts.service_tier in target.service_tiers else None
    longest = longest_answer(target, facts)
    if longest is None and deployment.speaks_messages:
        # Anthropic wants to be told, and has room for the longest that there is.
        longest = target.max_output_tokens
    elif longest == facts.max_output_tokens and not any(
        name in lacks and name in routed.request.fields for name in LENGTHS
    ):
        longest = None
    if tier is None and longest is None:
        return fields
    found = dict(fields)
    if tier is not None:
        found["service_tier"] = tier
    if longest is not None:
        said = [name for name in LENGTHS if name in routed.request.fields and name not in lacks]
        found.update(dict.fromkeys(said or [_longest_field(lacks, deployment)], longest))
    return found


def call_headers(target: Target, routed: RoutedRequest, now: float) -> dict[str, str]:
    """Return the gateway's own headers for a call. Only engines of our own, and proxies before them, get the team and
    the time left, under the names that llm-d's scheduler and this gateway read.
    """
    if target.pool is None:
        return routed.upstream_headers
    headers = {**routed.upstream_headers, FAIRNESS_HEADER: routed.caller.team_id}
    deadline = routed.deadline
    if routed.request.stream and deadline.first_token_at < math.inf:
        headers[TTFT_HEADER] = _ms(deadline.first_token_at - now)
    # Of a stream the usual limit bounds its beginning alone, and would cut it where it is taken for the whole.
    if deadline.answer_at < math.inf and (deadline.own or not routed.request.stream):
        headers[TIMEOUT_HEADER] = _ms(deadline.remaining_s(now))
    return headers


def _ms(left_s: float) -> str:
    return str(min(MOST_TIMEOUT_MS, max(1, int(left_s * 1_000))))


def _longest_field(lacks: frozenset[str], deployment: Deployment) -> str:
    """Return the field of the longest answer: OpenAI's newer models know the newer name alone, most other hosts the
    older one.
    """
    older, newer = LENGTHS
    usual = deployment.quirks.longest or older
    return next((name for name in (usual, older, newer) if name not in lacks), usual)


def dropped_fields(target: Target, routed: RoutedRequest) -> tuple[str, ...]:
    """Return the caller's parameters that the target cannot take, and that the caller is told are left out; sorted."""
    left_out = left_out_fields(target, routed)
    if not left_out:
        return ()
    fields = routed.request.fields
    return tuple(sorted(name for name in _TOLD.intersection(left_out, fields) if is_said(name, fields[name])))


def left_out_fields(target: Target, routed: RoutedRequest) -> tuple[str, ...]:
    """Return all of the caller's parameters that are left out: also those without effect, and those that another name
    repeats.
    """
    fields = routed.request.fields
    lacks = routed.facts.lacking(target)
    found = () if lacks.isdisjoint(fields) else tuple(lacks & fields.keys())
    if _OURS in lacks and _OURS not in fields:
        found += (_OURS,)
    if target.excludes:
        found += tuple(name for name in beside_each_other(target.excludes, fields) if name not in found)
    return found


_TOLD: Final = MINOR | NOTES
_OURS: Final = "stream_options"
"""The gateway itself asks for a stream's usage by it."""


def engine_priority(routed: RoutedRequest) -> int:
    """Return vLLM's scheduling priority, lower first: interactive, then batch, then background work, each ordered by
    the request's own priority.
    """
    if routed.origin != "caller":
        return _NOBODY_WAITS
    return (_BATCH if routed.facts.tier == "batch" else 0) - routed.request.priority


def cache_salt(deployment: Deployment, caller: Caller) -> str:
    """Return vLLM's `cache_salt`: requests with the same salt share cached prefixes. Empty where all may share.

    It is a hash, so that engine logs do not name customers; callers cannot send one themselves.
    """
    if deployment.cache_isolation == "none":
        return ""
    whose = caller.team_id if deployment.cache_isolation == "team" else caller.organisation_id
    return blake2b(f"{deployment.cache_isolation}:{whose}".encode(), digest_size=16).hexdigest()
