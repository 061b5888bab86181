"""The parts of a running gateway, as routes find them in the request's state."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Final, NamedTuple, TypedDict

from fastapi import Depends, Request
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.audit.log import AuditLog
from accounts.caller import Caller
from accounts.keys import Pepper
from accounts.people.links import Links
from accounts.people.people import PeopleStore
from accounts.people.sessions import Sessions
from accounts.people.sign_in import SignIn
from accounts.store import AccountStore
from classifier.heuristic import HeuristicClassifier
from classifier.learning.store import LearningStore
from classifier.onnx_classifier import OnnxClassifier
from cost.ledger import Ledger
from cost.reports.scope import ReadScope
from cost.reports.usage import UsageReader
from providers.breaker import Breakers
from proxy.books.claims import Claims
from proxy.books.price_watch import PriceWatch
from proxy.configuration.settings import GatewayConfig
from proxy.errors import AdminOnly, FinanceOnly, OperatorOnly, ReadsOnly
from proxy.gate.opened import OpenGate
from proxy.line import Line
from proxy.observers.learning import LearningLog
from proxy.observers.metrics import Metrics
from proxy.operations.opened import Operations
from proxy.request import read_headers
from proxy.sign_in.providers import Providers
from selfhosted.look import FleetView

READS_AT_ONCE: Final = 4
"""Fewer than the database's connections, so that finance cannot keep them from requests."""


class Gateway(NamedTuple):
    """Wired once per process by `proxy.app`; nothing here is replaced while it runs."""

    line: Line
    gate: OpenGate
    ledger: Ledger
    usage: UsageReader
    metrics: Metrics
    learning: LearningStore
    learning_log: LearningLog
    classifier: OnnxClassifier | HeuristicClassifier
    prices: PriceWatch
    claims: Claims
    database: AsyncEngine
    reads: asyncio.Semaphore
    """Taken for each look into the books, of which a few happen at once."""
    webhooks: frozenset[str]
    """The destinations that budgets may name."""
    operator: str
    """The organisation whose admins may change what holds for all organisations."""
    metrics_token: str | None
    accounts: AccountStore
    people: PeopleStore
    sessions: Sessions
    sign_in: SignIn
    links: Links
    audit: AuditLog
    breakers: Breakers
    operations: Operations
    providers: Providers
    """OpenID providers that people may sign in through."""
    peppers: tuple[Pepper, ...]
    """The current one first."""
    config: Callable[[], GatewayConfig]
    """The configuration in force: a reload changes it."""
    fleet_view: FleetView | None = None
    """What is told of our own engines; None where there are none."""


class State(TypedDict):
    """The lifespan's state, typed."""

    gateway: Gateway


def gateway_of(request: Request) -> Gateway:
    """The gateway that serves this request."""
    found: Gateway = request.state.gateway
    return found


async def caller_of(request: Request) -> Caller:
    """The owner of the request's key; raises what `Line.authenticate` raises."""
    return await gateway_of(request).line.authenticate(read_headers(request.scope["headers"]))


AuthenticatedCaller = Annotated[Caller, Depends(caller_of)]


def read_scope(caller: Caller) -> ReadScope:
    """A member key reads its own team's figures; a finance or admin key those of the whole organisation."""
    team_id = None if caller.role in {"finance", "admin"} else caller.team_id
    return ReadScope(organisation_id=caller.organisation_id, team_id=team_id)


async def _scope_of(caller: AuthenticatedCaller) -> ReadScope:
    return read_scope(caller)


async def _finance_caller(caller: AuthenticatedCaller) -> Caller:
    if caller.role not in {"finance", "admin"}:
        raise FinanceOnly("This needs a key with the role finance or admin: `weighbridge keys create --role finance`.")
    return caller


async def _admin_caller(caller: AuthenticatedCaller) -> Caller:
    if caller.role != "admin":
        raise AdminOnly("This needs a key with the role admin: `weighbridge keys create --role admin`.")
    return caller


async def _operator_caller(caller: Annotated[Caller, Depends(_admin_caller)], request: Request) -> Caller:
    if caller.organisation_id != gateway_of(request).operator:
        raise OperatorOnly("This holds for every organisation, so it needs an admin key of the operator's own.")
    return caller


async def _acting_caller(caller: AuthenticatedCaller) -> Caller:
    if caller.reads_only:
        raise ReadsOnly
    return caller


FinanceReader = Annotated[ReadScope, Depends(_scope_of)]
"""Any valid key, as what it may read."""
FinanceCaller = Annotated[Caller, Depends(_finance_caller)]
AdminCaller = Annotated[Caller, Depends(_admin_caller)]
OperatorCaller = Annotated[Caller, Depends(_operator_caller)]
ActingCaller = Annotated[Caller, Depends(_acting_caller)]
"""Any key but one that only reads."""
