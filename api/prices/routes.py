"""/v1/prices: prices of targets, now and upcoming; admins of the operating organisation enter and withdraw prices."""

import contextlib
from collections.abc import AsyncIterator
from typing import Final

from fastapi import APIRouter, Request
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response

from api.prices import change as changes
from api.prices.listing import BadPrice, checked_prices, entry_told, parse_prices, prices_as_json, today
from api.prices.price_types import PriceEntered, PriceOut, PriceWithdrawn
from api.web.actor import actor_of
from api.web.api_types import Listed
from api.web.gateway import AuthenticatedCaller, Gateway, OperatorCaller, gateway_of
from api.web.openapi import described
from api.web.patience import patience
from api.web.reading import json_reply
from api.web.request_body import read_body
from cost.errors import PriceError, UnknownPrice
from cost.price_book.price_config import EnteredPrices
from cost.times import wall_us
from proxy.errors import BadRequest, ModelNotFound, PriceNotFound, PricesUnavailable
from proxy.plan.route_plan import may_use

router = APIRouter(tags=["prices"])

MAX_BODY_BYTES: Final = 64 * 1024
_PATIENCE_S: Final = 5.0


@router.get("/v1/prices", **described("List the prices", gives={200: Listed[PriceOut]}))
async def list_prices(request: Request, caller: AuthenticatedCaller) -> Response:
    """Return the targets that the key's team may use, each with its price in effect and upcoming ones."""
    gateway = gateway_of(request)
    now_us = wall_us()
    data = [
        prices_as_json(gateway.finance.prices.book, target_id, now_us)
        for target_id, target in gateway.rules().catalog.targets.items()
        if may_use(caller.allowed_models, target)
    ]
    return json_reply({"object": "list", "data": data})


@router.put(
    "/v1/prices/{target:path}",
    **described("Enter a price", takes=EnteredPrices, gives={200: PriceEntered}, example={"input": 2.25, "output": 9}),
)
async def set_price(target: str, request: Request, caller: OperatorCaller) -> Response:
    """Enter a price that overrides the configured ones. Every server follows within seconds."""
    gateway = gateway_of(request)
    if target not in gateway.rules().catalog:
        raise ModelNotFound(f"There is no model `{target[:80]}`; GET /v1/prices lists them.", param="target")
    body = await read_body(request, timeout_s=gateway.rules().body_timeout_s, most_bytes=MAX_BODY_BYTES)
    try:
        entered = checked_prices(parse_prices(body))
    except BadPrice as error:
        raise BadRequest(f"The price is not valid: {error}.", param=error.field or None) from error
    price, effective_us = entered.entered(today(wall_us()))
    async with _store():
        actor = actor_of(request, caller)
        kept = await changes.set_price(gateway.identity.audit, actor, target, price, effective_us, note=entered.note)
    await gateway.finance.reprice()
    return json_reply({"object": "price", "target": target, **entry_told(kept)})


@router.delete(
    "/v1/prices/{target:path}/{version}", **described("Take an entered price back", gives={200: PriceWithdrawn})
)
async def withdraw_price(target: str, version: str, request: Request, caller: OperatorCaller) -> Response:
    """Withdraw an entered price; the next price in precedence applies again. Bookings at it stay."""
    gateway: Gateway = gateway_of(request)
    async with _store():
        await changes.withdraw_price(gateway.identity.audit, actor_of(request, caller), target, version)
    await gateway.finance.reprice()
    return json_reply({"object": "price.withdrawn", "target": target, "version": version, "withdrawn": True})


@contextlib.asynccontextmanager
async def _store() -> AsyncIterator[None]:
    try:
        async with patience(_PATIENCE_S):
            yield
    except UnknownPrice as error:
        raise PriceNotFound(f"{error}.", param="version") from error
    except PriceError as error:
        raise BadRequest(f"{error}.", param="version") from error
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise PricesUnavailable("The database does not answer; nothing was changed, try again shortly.") from error
