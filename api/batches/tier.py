"""Access of routes to the batch tier: its parts, the team whose files are meant, and failures of the database."""

import contextlib
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy.exc import SQLAlchemyError

from accounts.caller import Caller
from api.web.gateway import ActingCaller, gateway_of
from api.web.patience import patience
from proxy.batch.batch_errors import BatchOff, BatchUnavailable
from proxy.batch.batch_parts import BatchTier
from proxy.batch.files import Owner

_PATIENCE_S = 5.0


def tier_of(request: Request) -> BatchTier:
    """Return the batch tier of the gateway. Raises BatchOff."""
    found = gateway_of(request).jobs.batch
    if found is None:
        raise BatchOff("Files and batches are turned off on this gateway (`batch.enabled`).")
    return found


def owner_of(caller: Caller) -> Owner:
    """Return the team of a key."""
    return Owner(organisation_id=caller.organisation_id, team_id=caller.team_id)


async def _owner(caller: ActingCaller) -> Owner:
    return owner_of(caller)


KeyOwner = Annotated[Owner, Depends(_owner)]
"""The team of the request's key. Keys that only read figures see no prompts, so they are refused."""
Tier = Annotated[BatchTier, Depends(tier_of)]


@contextlib.asynccontextmanager
async def asking(seconds: float = _PATIENCE_S) -> AsyncIterator[None]:
    """Bound a look or a change by a timeout. Raises BatchUnavailable where the database does not answer."""
    try:
        async with patience(seconds):
            yield
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise BatchUnavailable(
            "The database does not answer; nothing was changed, try again shortly.", retry_after_s=2
        ) from error
