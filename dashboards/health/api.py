"""Liveness, readiness and metrics."""

import asyncio
import hmac
from ipaddress import ip_address
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import JSONResponse, Response

from cost.times import wall_us
from dashboards.web.gateway import Gateway, gateway_of
from dashboards.web.openapi import described
from proxy.errors import MetricsClosed

router = APIRouter(tags=["health"])

_DATABASE_TIMEOUT_S = 1.0
_JOURNAL_OLD_S = 60.0
_FORWARDED = {"forwarded", "x-forwarded-for", "x-real-ip", "via"}


class Alive(msgspec.Struct, frozen=True, kw_only=True):
    """The process responds."""

    status: str


class Journals(msgspec.Struct, frozen=True, kw_only=True):
    """What this host's processes, dead ones included, booked and the database does not have yet."""

    processes: int
    """Processes of which anything waits."""
    waiting: int
    """Entries that wait."""
    oldest_s: float
    """How long the oldest has waited; 0 if none waits."""


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Readiness for traffic, the checks behind it, what waits to be booked, and the classifier in use."""

    status: str
    checks: dict[str, bool]
    journals: Journals
    classifier: dict[str, str | None]


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


_ALIVE: Final = described("Whether the process answers", gives={200: Alive})
_READY: Final = described("Whether the process should get traffic", gives={200: Readiness, 503: Readiness})


@router.get("/healthz", **_ALIVE)
@router.get("/health", operation_id="alive_alias", **_ALIVE)
async def alive() -> JSONResponse:
    """Liveness: the process responds. No dependency is checked."""
    return JSONResponse({"status": "ok"})


@router.get("/readyz", **_READY)
@router.get("/ready", operation_id="ready_alias", **_READY)
async def ready(request: Request) -> JSONResponse:
    """Readiness for traffic, with its checks. 503 while the process drains or its ledger does not accept entries."""
    gateway = gateway_of(request)
    journals = await _journals(gateway)
    checks = {
        "accepting": not gateway.is_draining(),
        "ledger": gateway.ledger.accepting,
        "journals": journals.oldest_s < _JOURNAL_OLD_S,
        "database": await _database_answers(gateway),
    }
    # An unreachable database alone is no reason to leave: known keys are served and the journals hold the books.
    fine = checks["accepting"] and checks["ledger"]
    return JSONResponse(
        {
            "status": "ready" if fine else "not ready",
            "checks": checks,
            "journals": msgspec.to_builtins(journals),
            "classifier": _classifier(gateway),
        },
        status_code=200 if fine else 503,
    )


async def _journals(gateway: Gateway) -> Journals:
    found = [each for each in await gateway.drain.waiting() if each.entries]
    oldest_us = min((each.oldest_at_us for each in found if each.oldest_at_us is not None), default=None)
    return Journals(
        processes=len(found),
        waiting=sum(each.entries for each in found),
        oldest_s=0.0 if oldest_us is None else round(max(0.0, (wall_us() - oldest_us) / 1_000_000), 3),
    )


def _classifier(gateway: Gateway) -> dict[str, str | None]:
    """The classifier in use. The heuristic fallback does not make a process unready: it serves, with less accuracy."""
    reason = gateway.classifier.fallback_reason
    return {"in_use": "onnx" if reason is None else "heuristic", "fallback_reason": reason}


async def _database_answers(gateway: Gateway) -> bool:
    try:
        async with asyncio.timeout(_DATABASE_TIMEOUT_S), gateway.database.connect() as connection:
            await connection.execute(text("SELECT 1"))
    except (SQLAlchemyError, OSError, TimeoutError):
        return False
    return True


@router.get(
    "/metrics",
    response_class=Response,
    **described("Read metrics", gives={200: "Prometheus text"}, files=("text/plain",)),
)
async def metrics(request: Request, _reader: Annotated[None, Depends(MetricsReader())]) -> Response:
    """Prometheus metrics of all workers together, for this machine or with `telemetry.metrics_token`."""
    gateway = gateway_of(request)
    gateway.ledger_metrics.set_journal(gateway.ledger.state())
    gateway.metrics.write()
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
