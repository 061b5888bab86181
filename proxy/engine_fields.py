"""The fields that an engine of our own is told beside the caller's body: how urgent a request is, and whose cache it may use."""

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
"""Work that no caller asked for: shadow requests and judging."""


def engine_fields(deployment: Deployment, routed: RoutedRequest) -> Mapping[str, int | str]:
    """Fields of the body that vLLM reads. Empty for an engine that was not configured to understand them."""
    if not deployment.priority_scheduling and deployment.cache_isolation == "none":
        return _NOTHING
    fields: dict[str, int | str] = {}
    if deployment.priority_scheduling:
        fields["priority"] = engine_priority(routed)
    if salt := cache_salt(deployment, routed.caller):
        fields["cache_salt"] = salt
    return fields


def engine_priority(routed: RoutedRequest) -> int:
    """The lower goes first: interactive before batch before what nobody waits for, and in each a team's own order."""
    if routed.origin != "caller":
        return _NOBODY_WAITS
    return (_BATCH if routed.facts.tier == "batch" else 0) - routed.request.priority


def cache_salt(deployment: Deployment, caller: Caller) -> str:
    """Those with the same salt share cached prefixes. Empty where everybody does.

    It is hashed so that engines' logs do not name customers; callers cannot send one of their own.
    """
    if deployment.cache_isolation == "none":
        return ""
    whose = caller.team_id if deployment.cache_isolation == "team" else caller.organisation_id
    return blake2b(f"{deployment.cache_isolation}:{whose}".encode(), digest_size=16).hexdigest()
