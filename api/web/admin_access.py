"""Authorisation of /v1/admin, in one place: key, team, and right; and the object that handlers receive."""

import contextlib
import re
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from fastapi import Request
from starlette.responses import Response

from accounts.access import Principal, Right, may, principal_of
from accounts.audit.entry import Actor
from accounts.caller import Caller
from accounts.store import TeamRecord
from api.web.actor import actor_of
from api.web.changing import looking, no_such_team
from api.web.gateway import Gateway, Keyed, caller_of, gateway_of
from api.web.parameters import check_path
from api.web.reading import json_reply
from api.web.request_body import read_body
from cost.amounts import EXAMPLE
from proxy.errors import BadRequest, NotAllowed, TeamNotFound
from settings.decoding import DECODE_ERRORS

MAX_BODY_BYTES: Final = 64 * 1024
_FIELD: Final = re.compile(r"Object (?:missing required|contains unknown) field `([^`]{1,100})`")

Body = TypeVar("Body")


class AdminRequest(NamedTuple):
    """An authorised request: its caller, and its team where the address names one."""

    request: Request
    gateway: Gateway
    caller: Caller
    principal: Principal
    team: TeamRecord | None

    @property
    def organisation_id(self) -> str:
        """The key's own organisation; no other can be reached."""
        return self.principal.organisation_id

    @property
    def actor(self) -> Actor:
        """The key as an audit actor."""
        return actor_of(self.request, self.caller)

    @property
    def the_team(self) -> TeamRecord:
        """The team of the address, on routes that name one."""
        assert self.team is not None  # noqa: S101 - only routes without {team_id} have none
        return self.team

    def may(self, right: Right) -> bool:
        """Return True if the key has a right, in the address's team where there is one."""
        return may(self.principal, right, team_id=self.team.team_id if self.team else None)

    async def body(self, kind: type[Body]) -> Body:
        """Return the body, decoded as `kind`. Raises BadRequest, BodyTooLarge, UploadTimeout."""
        timeout_s = self.gateway.rules().body_timeout_s
        return parsed(await read_body(self.request, timeout_s=timeout_s, most_bytes=MAX_BODY_BYTES), kind)

    def reply(self, value: Any, status: int = 200) -> Response:
        """Return a JSON reply that is not cached: some contain secrets that are shown only once."""
        made = json_reply(value, status)
        made.headers["cache-control"] = "no-store"
        return made


class Admin(Keyed):
    """A dependency of routes that requires a right, and gives an AdminRequest."""

    def __init__(self, right: Right, *, makes_team: bool = False) -> None:
        self.right = right
        self.makes_team = makes_team

    async def __call__(self, request: Request) -> AdminRequest:
        gateway = gateway_of(request)
        caller = await caller_of(request)
        check_path(request)
        principal = principal_of(caller, gateway.operator)
        team_id = request.path_params.get("team_id")
        makes = self.makes_team and may(principal, self.right)
        team = None if team_id is None or makes else await _team(gateway, principal, team_id)
        if not may(principal, self.right, team_id=None if team is None else team.team_id):
            raise NotAllowed(
                f"This key has the role {caller.role}, which may not do this; use an administrator's key "
                "(`weighbridge keys create --role admin`)."
            )
        return AdminRequest(request, gateway, caller, principal, team)


async def _team(gateway: Gateway, principal: Principal, team_id: str) -> TeamRecord:
    """Return the team of the address. Raises TeamNotFound, also for another organisation's, and for one that the key may not
    read.
    """
    if may(principal, "team.read", team_id=team_id):
        with contextlib.suppress(TeamNotFound):
            async with looking():
                return await gateway.identity.accounts.team_of(principal.organisation_id, team_id)
    raise no_such_team(team_id)


def admin(right: Right, *, makes_team: bool = False) -> Admin:
    """Return the dependency for a right: `desk: Annotated[AdminRequest, Depends(admin("team.change"))]`. With `makes_team` the
    address names a team that may not exist, and the AdminRequest has none.
    """
    return Admin(right, makes_team=makes_team)


def _allowed(kind: type[Any], told: str, param: str | None) -> str:
    """Return a sentence that lists the allowed fields or words, to follow msgspec's own message. Empty where the fault
    is of another kind, or deeper than the body's own fields.
    """
    described = msgspec.inspect.type_info(kind)
    if not isinstance(described, msgspec.inspect.StructType):
        return ""
    if told.startswith("Object contains unknown field") and param not in {
        each.encode_name for each in described.fields
    }:
        return f" There are {', '.join(f'`{each.encode_name}`' for each in described.fields)}."
    if not told.startswith("Invalid enum value"):
        return ""
    words = [word for each in described.fields if each.encode_name == param for word in _words(each.type)]
    return f" It is one of {', '.join(f'`{word}`' for word in words)}." if words else ""


def _words(kind: msgspec.inspect.Type) -> list[str]:
    """Return the words of a Literal, within a union and under a description too; none where it has others."""
    if isinstance(kind, msgspec.inspect.Metadata):
        return _words(kind.type)
    if isinstance(kind, msgspec.inspect.UnionType):
        return [word for each in kind.types for word in _words(each)]
    return [str(word) for word in kind.values] if isinstance(kind, msgspec.inspect.LiteralType) else []


def parsed(body: bytes, kind: type[Body]) -> Body:
    """Return a JSON body decoded as `kind`. Raises BadRequest, which names the field."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.ValidationError as error:
        told, _, place = str(error).partition(" - at `$")
        named = _FIELD.fullmatch(told)
        param = place.strip("`.").split(".")[0].split("[")[0] or (named[1] if named else None)
        where = f"`{param}` is not valid: " if param else "The body is not valid: "
        example = f" As an amount, {EXAMPLE}." if "decimal" in told else ""
        raise BadRequest(f"{where}{told[:300]}.{example}{_allowed(kind, told, param)}", param=param) from error
    except DECODE_ERRORS as error:
        raise BadRequest(f"The body is no JSON: {str(error)[:200]}.") from error
