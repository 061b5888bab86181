"""Prometheus metrics."""

import asyncio
import hmac
from ipaddress import ip_address
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.responses import Response

from api.web.gateway import gateway_of
from api.web.openapi import described
from proxy.errors import MetricsClosed

router = APIRouter(tags=["metrics"])

METRICS_LISTENER: Final = "metrics_listener"
"""The request state that marks requests of the listener for metrics alone."""
_FORWARDED: Final = ("forwarded", "x-forwarded", "x-real-ip", "x-client-ip", "via")
"""Prefixes of the header fields that proxies add."""


class MetricsReader(SecurityBase):
    """A dependency that restricts metrics to requests with the token of `telemetry.metrics_token`, or, where there is
    none, to those that come by `telemetry.metrics_listen` and, where `telemetry.metrics_local` says so, from this
    machine.
    """

    model = HTTPBearer(
        description="The token that `telemetry.metrics_token` says; with `telemetry.metrics_local` this machine needs none."
    )
    scheme_name = "metricsToken"

    async def __call__(self, request: Request) -> None:
        gateway = gateway_of(request)
        if not _may_read(request, gateway.metrics_token, local=gateway.config().telemetry.metrics_local):
            raise MetricsClosed(
                "Metrics are closed: set `telemetry.metrics_token` and send it as `Authorization: Bearer …`, give them an "
                "address of their own with `telemetry.metrics_listen`, or open them to this machine with "
                "`telemetry.metrics_local`."
            )


@router.get(
    "/metrics",
    response_class=Response,
    **described("Read metrics", gives={200: "Prometheus text"}, files=("text/plain",)),
)
async def metrics(request: Request, _reader: Annotated[None, Depends(MetricsReader())]) -> Response:
    """Return the Prometheus metrics of all workers together, with `telemetry.metrics_token`."""
    gateway = gateway_of(request)
    await gateway.finance.write_down()
    # Many teams make many series: render off the event loop.
    body, media_type = await asyncio.to_thread(gateway.metrics.requests.render)
    return Response(body, media_type=media_type)


def _may_read(request: Request, token: str | None, *, local: bool) -> bool:
    if token is not None:
        sent = request.headers.get("authorization", "")
        return hmac.compare_digest(sent.encode(), f"Bearer {token}".encode())
    if getattr(request.state, METRICS_LISTENER, False):
        return True
    # A local proxy makes every client look local, but mostly adds one of these fields.
    forwarded = any(name.startswith(_FORWARDED) for name in request.headers)
    return local and not forwarded and request.client is not None and ip_address(request.client.host).is_loopback
