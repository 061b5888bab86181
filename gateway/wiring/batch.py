"""Wiring of the batch tier: its parts for routes, and the runner that answers lines by this process's pipeline."""

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final

import aiohttp
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from accounts.keys import Pepper
from accounts.store import AccountStore
from api.webhooks.addresses import CallbackAddresses
from api.webhooks.callbacks import DESTINATION, CallbackDesk, CallbackSecrets
from api.webhooks.outbox import Outbox
from api.webhooks.sealed_addresses import SealedAddresses
from cost.budgets.grants import GrantStore
from cost.times import wall_us
from gateway.configuration.environment import resolve_secret
from gateway.configuration.gateway_config import GatewayConfig
from gateway.configuration.places import FILES, Places
from providers.batch_apis.anthropic import AnthropicBatches
from providers.batch_apis.batch_api import BatchHttp
from providers.batch_apis.openai import OpenAiBatches
from providers.catalog import Catalog
from providers.target import Deployment
from proxy.batch.backlog import Backlog
from proxy.batch.batch import OPERATIONS, Batch
from proxy.batch.batch_config import BatchSection
from proxy.batch.batch_metrics import BatchMetrics
from proxy.batch.batch_parts import BatchTier
from proxy.batch.blobs import Blobs, LocalBlobs
from proxy.batch.cost_bound import CostBounds
from proxy.batch.files import FileStore
from proxy.batch.line_protocol import LineReply, LineRequest
from proxy.batch.observers import Event
from proxy.batch.provider_batch_store import ProviderBatchStore
from proxy.batch.provider_batches import ProviderBatchRunner
from proxy.batch.runner import BatchRunner, Room, Told, event_id, nothing_at_providers
from proxy.batch.store import BatchStore
from proxy.pipeline import RequestPipeline
from proxy.plan.pipeline_config import PipelineConfig
from proxy.provider_batch_lines import PipelineOffers
from proxy.responses.stored.sealing import Sealing
from proxy.routes import WIRE_AT
from proxy.shared.background_tasks import background, every
from proxy.shared.database_clock import DatabaseTime

_FORGET_S: Final = 600.0
_DAY_US: Final = 86_400_000_000
_WIRES: Final = {endpoint: WIRE_AT[endpoint] for endpoint in OPERATIONS}


def open_batch_tier(
    engine: AsyncEngine, config: GatewayConfig, places: Places, rules: Callable[[], PipelineConfig]
) -> BatchTier | None:
    """Return the tier's parts; None where it is turned off. `rules` are those that requests are planned by now."""
    section = config.batch
    if not section.enabled:
        return None
    shared = DatabaseTime(engine)
    files = FileStore(
        engine,
        open_blobs(section, places),
        shared,
        max_file_bytes=section.max_file_bytes,
        max_stored_bytes=section.max_stored_bytes,
        keep_us=section.keep_days * _DAY_US,
    )
    batches = BatchStore(engine, shared)
    money = CostBounds(batches, GrantStore(engine), lambda: (rules().policy, rules().catalog))
    return BatchTier(section, shared, files, batches, money)


def open_blobs(section: BatchSection, places: Places) -> Blobs:
    """Open the store of files; the extra that an object store needs was looked for when the configuration was read."""
    if section.s3 is None:
        return LocalBlobs(section.folder or places.kept(FILES))
    from proxy.batch.s3_blobs import S3Blobs  # noqa: PLC0415 - an extra

    key = (section.s3.access_key_id, section.s3.secret_access_key)
    return S3Blobs(section.s3, *(None if each is None else resolve_secret(each) for each in key))


def keep_batches_going(
    tier: BatchTier,
    *,
    accounts: AccountStore,
    line: RequestPipeline,
    backlog: Backlog,
    room: Room,
    metrics: BatchMetrics,
    outbox: Outbox,
    boot_id: str,
    is_draining: Callable[[], bool],
    stack: contextlib.AsyncExitStack,
) -> None:
    """Start this process's runner; when the stack closes, its lines are given back. Where it is allowed, lines are handed over to
    providers' batch APIs, too. Where other hosts answer lines there is none.
    """
    if not tier.section.answers:
        return
    holder = f"{boot_id[:48]}-{secrets.token_hex(4)}"
    handover: ProviderBatchRunner | None = None
    handed = ProviderBatchStore(tier.batches, tier.time)
    runner = BatchRunner(
        section=tier.section,
        batches=tier.batches,
        files=tier.files,
        answering=LineAnswers(line),
        caller_of=accounts.caller_of,
        is_blocked=accounts.is_blocked,
        room=room,
        money=tier.money,
        told=telling(outbox),
        holder=holder,
        max_line_bytes=lambda: line.config.max_body_bytes,
        observer=metrics,
        handed=handed.out if tier.section.providers else nothing_at_providers,
        backlog=backlog,
        bound=lambda batch: None if handover is None else handover.bound(batch),
    )
    if tier.section.providers:
        session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        stack.push_async_callback(session.close)
        handover = ProviderBatchRunner(
            section=tier.section,
            batches=tier.batches,
            store=handed,
            line=PipelineOffers(line, _WIRES.__getitem__, time.monotonic, wall_us),
            apis={
                "openai": OpenAiBatches(BatchHttp(session)),
                "anthropic": AnthropicBatches(BatchHttp(session)),
            },
            deployments=lambda: _with_batch_api(line.config.catalog),
            caller_of=accounts.caller_of,
            is_blocked=accounts.is_blocked,
            body_of=runner.body_of,
            slacks=lambda: runner.slacks,
            speed=lambda: runner.speed.tokens_per_s,
            money=tier.money,
            holder=holder,
            clock=time.monotonic,
            rest_s=lambda: runner.rest_s,
            count=metrics.count_handed,
        )
        background(stack, handover.run(is_draining))
    background(stack, runner.run(is_draining))
    background(stack, every(_FORGET_S, runner.forget))


def _with_batch_api(catalog: Catalog) -> dict[str, Deployment]:
    return {
        deployment.deployment_id: deployment
        for target in catalog
        for deployment in target.deployments
        if deployment.batch_api is not None
    }


class LineAnswers:
    """The pipeline in this process for lines of batches and for prompts that are tried on a page."""

    def __init__(self, line: RequestPipeline) -> None:
        self._line = line

    async def answer(self, asked: LineRequest) -> LineReply:
        """Answer one request."""
        return await self._line.answer(_WIRES[asked.endpoint], asked)


def open_callbacks(engine: AsyncEngine, config: GatewayConfig, peppers: Sequence[Pepper]) -> CallbackDesk | None:
    """Build the callbacks' addresses and secrets for routes and the sender; None where batches are turned off."""
    if not config.batch.enabled:
        return None
    return CallbackDesk(
        CallbackAddresses(config.batch.callback_networks),
        CallbackSecrets(engine, peppers),
        Outbox(engine),
        SealedAddresses(Sealing(tuple(peppers))),
    )


def telling(outbox: Outbox) -> Told:
    """Put a message into the outbox for whoever gave a batch an address to call."""

    async def tell(connection: AsyncConnection, batch: Batch, event: Event) -> None:
        if batch.callback_url is not None:
            data = {"id": batch.batch_id}
            await outbox.put_in(
                connection,
                event_id(batch.batch_id, event),
                DESTINATION,
                event,
                data,
                url=batch.callback_url,
                team_id=batch.team_id,
            )

    return tell
