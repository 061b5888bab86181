"""/v1/fleet: state of self-hosted pools and replicas, drain orders, and registration of replicas by themselves or their
launcher.
"""

import contextlib
import hmac
import logging
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response

from api.fleet.drain import drain_replica, undrain_replica
from api.operations.snapshot import fleet_now
from api.web.actor import actor_of
from api.web.gateway import OperatorCaller, gateway_of
from api.web.openapi import described
from api.web.patience import patience
from api.web.reading import json_reply
from api.web.request_body import read_body
from proxy.errors import (
    AddressNotAllowed,
    BadRequest,
    FleetUnavailable,
    PoolCrowded,
    PoolNotFound,
    PoolTokenRefused,
    ReplicaNameTaken,
    ReplicaNotFound,
)
from proxy.parse.headers import read_headers
from selfhosted.config import RegistrationConfig
from selfhosted.health.fleet_view import FleetView, WatchedPool, told_wish
from selfhosted.registry.origin import OriginOutside, OriginRefused, checked_origin
from selfhosted.registry.store import NameTaken, PoolFull
from settings.decoding import DECODE_ERRORS

router = APIRouter(tags=["fleet"])
_audit: Final = logging.getLogger("weighbridge.audit")

MAX_BODY_BYTES: Final = 4 * 1024
_PATIENCE_S: Final = 3.0
_BEATS: Final = 3
"""Heartbeats a replica should send within its time to live."""
_INSTANCE: Final = r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z"
_NAME: Final = re.compile(_INSTANCE)
_BEARER: Final = "bearer "


class RegistrationBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Registration of a replica: its address, process, and drain state."""

    url: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    instance: Annotated[str, msgspec.Meta(pattern=_INSTANCE)]
    draining: bool = False
    version: Annotated[str, msgspec.Meta(pattern=r"\A(?:[A-Za-z0-9][A-Za-z0-9._-]{0,63})?\Z")] = ""
    """The model's version that it runs; empty when it does not say."""


_decoder: Final = msgspec.json.Decoder(RegistrationBody)


class TargetOut(msgspec.Struct, frozen=True, kw_only=True):
    """Desired number of a pool's replicas, and its reason; null where none was decided."""

    object: Literal["fleet.target"]
    pool: str
    desired: int | None
    desired_reason: str
    decided_at: str | None


class RegisteredOut(msgspec.Struct, frozen=True, kw_only=True):
    """A registered replica, and the seconds until its next heartbeat is expected."""

    object: Literal["fleet.replica"]
    pool: str
    name: str
    url: str
    instance: str
    draining: bool
    version: str
    ttl_s: float
    again_s: float
    state: str | None


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a deregistration; `deleted` is false where the process was not registered."""

    object: Literal["fleet.replica.deleted"]
    pool: str
    name: str
    deleted: bool


class DrainOut(msgspec.Struct, frozen=True, kw_only=True):
    """A replica's drain order, and whether there was one before."""

    object: Literal["fleet.drain"]
    pool: str
    name: str
    drained: bool
    was_drained: bool | msgspec.UnsetType = msgspec.UNSET


class Trusted(NamedTuple):
    """A pool whose token the request carried, with the fleet's view and the registration rules."""

    view: FleetView
    watched: WatchedPool
    rules: RegistrationConfig


class PoolTrust(SecurityBase):
    """A dependency that requires the token of the address's pool. An unknown pool and a wrong token get the same
    refusal.
    """

    model = HTTPBearer(
        description="The token of one pool: `selfhosted.pools[].registration.token` says where it is found."
    )
    scheme_name = "poolToken"

    async def __call__(self, request: Request, pool: str) -> Trusted:
        view = gateway_of(request).views.fleet
        watched = None if view is None else view.pools.get(pool)
        shown = read_headers(request.scope["headers"]).authorization or ""
        token = shown[len(_BEARER) :].strip() if shown.lower().startswith(_BEARER) else ""
        expected = "" if watched is None else watched.token or ""
        same = hmac.compare_digest(token.encode(), expected.encode())
        rules = None if watched is None else watched.config.registration
        if view is None or watched is None or rules is None or not expected or not same:
            raise PoolTokenRefused(
                f"`authorization: Bearer ...` does not have the token of a pool `{pool[:64]}` that takes registrations: "
                "`selfhosted.pools[].registration.token` says where it is found."
            )
        return Trusted(view, watched, rules)


_Trusted = Annotated[Trusted, Depends(PoolTrust())]


@router.get("/v1/fleet", **described("Look at the fleet", gives={200: "Every pool with its replicas"}))
async def show_fleet(request: Request, _caller: OperatorCaller) -> Response:
    """Show all pools with their replicas, as the answering process sees them."""
    return json_reply(await fleet_now(gateway_of(request)))


@router.get("/v1/fleet/pools/{pool}", **described("Look at a pool", gives={200: "It, with its replicas"}))
async def show_pool(pool: str, request: Request, _caller: OperatorCaller) -> Response:
    """Show one pool with its replicas."""
    _, watched = _pool(request, pool)
    pools = (await fleet_now(gateway_of(request)))["data"]
    return json_reply(next(each for each in pools if each["name"] == watched.config.name))


@router.get("/v1/fleet/pools/{pool}/target", **described("Read how many replicas are wanted", gives={200: TargetOut}))
async def show_target(pool: str, trusted: _Trusted, part: Literal["prefill"] | None = None) -> Response:
    """Return the desired number of replicas, for the launcher that starts them; with `part=prefill` of those that only read. It authenticates
    with the pool's token alone.
    """
    view, watched, _ = trusted
    name = watched.config.name if part is None else f"{watched.config.name}/{part}"
    return json_reply({"object": "fleet.target", "pool": pool, **told_wish(view.registry.wish(name))})


_REGISTER: Final = described(
    "Register a replica",
    takes=RegistrationBody,
    gives={200: RegisteredOut},
    example={"url": "http://10.0.0.7:8000", "instance": "engine-7-1a2b"},
)


@router.put("/v1/fleet/pools/{pool}/replicas/{name}", **_REGISTER)
@router.post("/v1/fleet/pools/{pool}/replicas/{name}", operation_id="register_by_post", **_REGISTER)
async def register(pool: str, name: str, request: Request, trusted: _Trusted) -> Response:
    """Register a replica or renews its registration. Every server follows within seconds."""
    view, watched, rules = trusted
    gateway = gateway_of(request)
    body = await read_body(request, timeout_s=gateway.rules().body_timeout_s, most_bytes=MAX_BODY_BYTES)
    said, url = _checked(_replica_name(name), body, rules)
    ttl_us = int(rules.ttl_s * 1_000_000)
    try:
        async with _database():
            entered = await view.store.register(
                pool,
                name,
                url=url,
                instance=said.instance,
                draining=said.draining,
                ttl_us=ttl_us,
                version=said.version,
            )
    except NameTaken as error:
        gateway.metrics.registry.count_registration(pool, "taken")
        raise ReplicaNameTaken(f"{_sentence(error)}.", param="name", retry_after_s=rules.ttl_s) from error
    except PoolFull as error:
        gateway.metrics.registry.count_registration(pool, "full")
        raise PoolCrowded(f"{_sentence(error)}.") from error
    gateway.metrics.registry.count_registration(pool, entered)
    if entered == "registered":
        _audit.warning("the token of the pool %s registered %s at %s as %s", pool, name, url, said.instance)
    replicas = watched.snapshot().replicas
    state = next((each.state for each in replicas if name in {each.name, each.address.process}), None)
    return json_reply(
        {
            "object": "fleet.replica",
            "pool": pool,
            "name": name,
            "url": url,
            "instance": said.instance,
            "draining": said.draining or name in view.registry.ordered(pool),
            "version": said.version,
            "ttl_s": rules.ttl_s,
            "again_s": round(rules.ttl_s / _BEATS, 3),
            "state": state,
        }
    )


@router.delete("/v1/fleet/pools/{pool}/replicas/{name}", **described("Take a replica out", gives={200: LeftOut}))
async def deregister(
    pool: str,
    name: str,
    request: Request,
    trusted: _Trusted,
    instance: Annotated[str, Query(description="Which process leaves: the one that it registered with. Needed.")] = "",
) -> Response:
    """Remove a replica's registration, unless another process has registered under its name since."""
    view = trusted.view
    if not _NAME.match(instance):
        raise BadRequest("`instance` says which process leaves: the one that it registered with.", param="instance")
    async with _database():
        left = await view.store.leave(pool, _replica_name(name), instance)
    if left:
        gateway_of(request).metrics.registry.count_registration(pool, "left")
        _audit.warning("the token of the pool %s took %s away, which was %s", pool, name, instance)
    return json_reply({"object": "fleet.replica.deleted", "pool": pool, "name": name, "deleted": left})


@router.put("/v1/fleet/pools/{pool}/replicas/{name}/drain", **described("Drain a replica", gives={200: DrainOut}))
async def drain(pool: str, name: str, request: Request, caller: OperatorCaller) -> Response:
    """Order a replica to take no new requests and finish its current ones, until undrained. Every server follows within
    seconds.
    """
    view, watched = _pool(request, pool)
    known = {known for each in watched.discovery.addresses for known in (each.name, each.process)}
    if name not in known:
        raise ReplicaNotFound(
            f"The pool `{pool}` has no replica `{name[:64]}` now; GET /v1/fleet lists them.", param="name"
        )
    try:
        async with _database():
            await drain_replica(gateway_of(request).identity.audit, actor_of(request, caller), pool, name, known=known)
    except PoolFull as error:
        raise PoolCrowded(f"{_sentence(error)}.") from error
    await view.registry.refresh()
    return json_reply({"object": "fleet.drain", "pool": pool, "name": name, "drained": True})


@router.delete(
    "/v1/fleet/pools/{pool}/replicas/{name}/drain", **described("Let a replica work again", gives={200: DrainOut})
)
async def undrain(pool: str, name: str, request: Request, caller: OperatorCaller) -> Response:
    """Withdraw a drain order. A replica that reports itself as draining stays so."""
    view, _ = _pool(request, pool)
    async with _database():
        actor = actor_of(request, caller)
        there = await undrain_replica(gateway_of(request).identity.audit, actor, pool, _replica_name(name))
    await view.registry.refresh()
    return json_reply({"object": "fleet.drain", "pool": pool, "name": name, "drained": False, "was_drained": there})


def _pool(request: Request, pool: str) -> tuple[FleetView, WatchedPool]:
    view = gateway_of(request).views.fleet
    watched = None if view is None else view.pools.get(pool)
    if view is None or watched is None:
        raise PoolNotFound(f"There is no pool `{pool[:64]}`; GET /v1/fleet lists them.", param="pool")
    return view, watched


def _checked(name: str, body: bytes, rules: RegistrationConfig) -> tuple[RegistrationBody, str]:
    try:
        said = _decoder.decode(body)
    except DECODE_ERRORS as error:
        raise BadRequest(
            f'The body of `{name}` is not {{"url", "instance", "draining", "version"}}: {error}.'
        ) from error
    try:
        return said, checked_origin(said.url, rules.networks)
    except OriginOutside as error:
        raise AddressNotAllowed(f"{_sentence(error)}.", param="url") from error
    except OriginRefused as error:
        raise BadRequest(f"{_sentence(error)}.", param="url") from error


def _replica_name(name: str) -> str:
    if not _NAME.match(name):
        raise BadRequest("A replica's name has 1 to 64 letters, digits, dots, dashes and underscores.", param="name")
    return name


def _sentence(error: Any) -> str:
    text = str(error)
    return text[:1].upper() + text[1:]


@contextlib.asynccontextmanager
async def _database() -> AsyncIterator[None]:
    try:
        async with patience(_PATIENCE_S):
            yield
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise FleetUnavailable("The database does not answer; the fleet stays as it is, try again shortly.") from error
