"""Wiring of responses that are made in the background: their store, and the runner on this process's pipeline."""

import contextlib
from collections.abc import Callable
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.store import AccountStore
from cost.times import wall_us
from proxy.pipeline import RequestPipeline
from proxy.responses.background.background_responses import BackgroundResponses
from proxy.responses.background.runner import BackgroundRunner
from proxy.responses.background.store import BackgroundStore
from proxy.responses.stored.sealing import Sealing
from proxy.responses.stored.store import ResponseStore
from proxy.responses.stored.stored_responses import StoredResponses
from proxy.responses.stored.stored_responses_config import ResponsesSection
from proxy.shared.background_tasks import background, every
from proxy.shared.database_clock import DatabaseTime

_PURGE_S: Final = 300.0


def open_background(
    engine: AsyncEngine, responses: StoredResponses, sealing: Sealing, section: Callable[[], ResponsesSection]
) -> BackgroundResponses:
    """Build the store of background responses, through which any process queues, reads and cancels them."""
    store = BackgroundStore(engine, DatabaseTime(engine), ResponseStore(engine))
    return BackgroundResponses(store, responses, sealing, section, wall_us)


def keep_making(
    responses: StoredResponses,
    made: BackgroundResponses,
    *,
    accounts: AccountStore,
    pipeline: RequestPipeline,
    section: Callable[[], ResponsesSection],
    is_draining: Callable[[], bool],
    stack: contextlib.AsyncExitStack,
) -> Callable[[], None]:
    """Start this process's runner; when the stack closes, its unfinished responses are given back. The returned
    function makes it look at once.
    """
    runner = BackgroundRunner(
        background=made,
        responses=responses,
        caller_of=accounts.caller_of,
        is_blocked=accounts.is_blocked,
        pipeline=pipeline,
        section=section,
        now_us=wall_us,
    )
    background(stack, runner.run(is_draining))
    background(stack, every(_PURGE_S, made.purge))
    return runner.look
