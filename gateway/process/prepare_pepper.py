"""The pepper at a start: made where no key needs another, and held against the keys that there are."""

import logging

from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.store import AccountStore
from accounts.unverified_keys import unverified
from gateway.configuration.environment import Environment
from gateway.configuration.gateway_config import GatewayConfig
from gateway.configuration.peppers import first_peppers

_log = logging.getLogger("weighbridge.serve")


async def prepare_pepper(engine: AsyncEngine, config: GatewayConfig, environment: Environment) -> None:
    """Make the pepper where there is none and no key either, and tell of keys that this gateway does not verify. Raises ConfigError."""
    keys = await AccountStore(engine).keys_by_pepper()
    told = unverified(keys, first_peppers(config, environment, keys))
    if told is not None:
        _log.error("%s", told)
