"""Body fields for engines of our own: scheduling priority, and the salt that separates prefix caches."""

from collections.abc import Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import Final

from accounts.caller import Caller
from providers.target import Deployment
from proxy.routed_request import RoutedRequest

_NOTHING: Final[Mapping[str, int | str]] = MappingProxyType({})
_BATCH: Final = 10
_NOBODY_WAITS: Final = 20
"""The priority of work that no caller waits for: shadow requests and judging."""


def engine_fields(deployment: Deployment, routed: RoutedRequest) -> Mapping[str, int | str]:
    """Returns the extra body fields that vLLM reads; empty for an engine not configured for them."""
    if not deployment.priority_scheduling and deployment.cache_isolation == "none":
        return _NOTHING
    fields: dict[str, int | str] = {}
    if deployment.priority_scheduling:
        fields["priority"] = engine_priority(routed)
    if salt := cache_salt(deployment, routed.caller):
        fields["cache_salt"] = salt
    return fields


def engine_priority(routed: RoutedRequest) -> int:
    """Returns vLLM's scheduling priority, lower first: interactive, then batch, then background work, each ordered by
    the request's own priority.
    """
    if routed.origin != "caller":
        return _NOBODY_WAITS
    return (_BATCH if routed.facts.tier == "batch" else 0) - routed.request.priority


def cache_salt(deployment: Deployment, caller: Caller) -> str:
    """Returns vLLM's `cache_salt`: requests with the same salt share cached prefixes. Empty where all may share.

    It is a hash, so that engine logs do not name customers; callers cannot send one themselves.
    """
    if deployment.cache_isolation == "none":
        return ""
    whose = caller.team_id if deployment.cache_isolation == "team" else caller.organisation_id
    return blake2b(f"{deployment.cache_isolation}:{whose}".encode(), digest_size=16).hexdigest()
