"""The parts of one process that people use: sign-in, sessions, one-time links, and the audit log."""

import contextlib

from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.audit.log import AuditLog
from accounts.key_readings import KeyReadings
from accounts.keys import Pepper
from accounts.openid.providers import open_providers
from accounts.people.links import OneTimeLinks
from accounts.people.passwords import Passwords
from accounts.people.people import PeopleStore
from accounts.people.sessions import Sessions
from accounts.people.sign_in import SignIn
from accounts.store import AccountStore
from api.web.gateway import Identity
from cost.times import wall_us
from gateway.configuration.environment import resolve_secret
from gateway.configuration.gateway_config import GatewayConfig


def open_people(
    engine: AsyncEngine,
    accounts: AccountStore,
    config: GatewayConfig,
    peppers: tuple[Pepper, ...],
    stack: contextlib.AsyncExitStack,
) -> Identity:
    """Open the sign-in to the pages, and the log of changes made there."""
    section = config.sign_in
    providers = open_providers(section, resolve_secret, peppers[0], wall_us)
    stack.push_async_callback(providers.aclose)
    passwords = Passwords(min_chars=section.password_min_chars)
    return Identity(
        accounts=accounts,
        people=PeopleStore(engine),
        sessions=Sessions(engine, section, peppers, now_us=wall_us),
        sign_in=SignIn(engine, section, peppers, passwords, now_us=wall_us),
        links=OneTimeLinks(engine, section, peppers, passwords, now_us=wall_us),
        audit=AuditLog(engine, now_us=wall_us),
        providers=providers,
        peppers=peppers,
        readings=KeyReadings(engine, wall_us),
    )
