"""Prometheus metrics."""

import asyncio
import hmac
from ipaddress import ip_address
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.responses import Response

from dashboards.web.gateway import gateway_of
from dashboards.web.openapi import described
from proxy.errors import MetricsClosed

router = APIRouter(tags=["health"])

_FORWARDED = {"forwarded", "x-forwarded-for", "x-real-ip", "via"}


class MetricsReader(SecurityBase):
    """Restricts metrics to this machine or, where `telemetry.metrics_token` is set, to requests with that token."""

    model = HTTPBearer(
        description="The token that `telemetry.metrics_token` says; without one, this machine needs none."
    )
    scheme_name = "metricsToken"

    async def __call__(self, request: Request) -> None:
        if not _may_read(request, gateway_of(request).metrics_token):
            raise MetricsClosed(
                "Metrics are for this machine only; set `telemetry.metrics_token` and send it as `Authorization: Bearer …`."
            )


@router.get(
    "/metrics",
    response_class=Response,
    **described("Read metrics", gives={200: "Prometheus text"}, files=("text/plain",)),
)
async def metrics(request: Request, _reader: Annotated[None, Depends(MetricsReader())]) -> Response:
    """Prometheus metrics of all workers together, for this machine or with `telemetry.metrics_token`."""
    gateway = gateway_of(request)
    await gateway.write_down()
    # Many teams make many series: render off the event loop.
    body, media_type = await asyncio.to_thread(gateway.metrics.render)
    return Response(body, media_type=media_type)


def _may_read(request: Request, token: str | None) -> bool:
    if token is not None:
        sent = request.headers.get("authorization", "")
        return hmac.compare_digest(sent.encode(), f"Bearer {token}".encode())
    # A local proxy makes every client look local, but adds this header.
    forwarded = not _FORWARDED.isdisjoint(request.headers.keys())
    return not forwarded and request.client is not None and ip_address(request.client.host).is_loopback
