"""The parts of a running gateway, as routes find them in the request's state."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Final, Literal, NamedTuple, Protocol, TypedDict

from fastapi import Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.access import Principal, may, principal_of
from accounts.audit.log import AuditLog
from accounts.caller import Caller
from accounts.config import AccountsSection
from accounts.directory import Directory
from accounts.key_readings import KeyReadings
from accounts.keys import Pepper
from accounts.openid.providers import Providers
from accounts.people.links import OneTimeLinks
from accounts.people.people import PeopleStore
from accounts.people.sessions import Sessions
from accounts.people.sign_in import SignIn
from accounts.people.sign_in_config import SignInSection
from accounts.store import AccountStore
from api.live.readers import Operations
from api.live.workers import Workers
from api.savings_calculator import SavingsCalculator
from api.web.parameters import check_query
from api.webhooks.callbacks import CallbackDesk
from api.webhooks.webhooks_config import WebhooksSection
from classifier.config import ClassifierSection
from classifier.heuristic import HeuristicClassifier
from classifier.learning.store import LearningStore
from classifier.onnx_classifier import OnnxClassifier
from cost.config import CostSection
from cost.ledger.drain import Drain
from cost.price_book.price_updates import PriceWatch
from cost.reports.scope import ReadScope
from cost.reports.usage import UsageReader
from guard.inspector import Guard
from providers.config import ProvidersSection
from providers.target import Deployment, Target
from proxy.admit.limits.book import LimitBook
from proxy.batch.batch_parts import BatchTier
from proxy.batch.line_protocol import Answering
from proxy.cache.cache_config import CacheSection
from proxy.errors import AdminOnly, NotAllowed, OperatorOnly, ReadsOnly, Refused, TeamNotFound
from proxy.learning.learning_metrics import LearningMetrics
from proxy.parse.headers import read_headers
from proxy.parse.parsed_request import caller_by_key
from proxy.plan.pipeline_config import PipelineConfig
from proxy.plan.routing_config import PolicyConfig
from proxy.responses.background.background_responses import BackgroundResponses
from proxy.responses.stored.stored_responses import StoredResponses
from proxy.settle.findings.store import FindingStore
from proxy.settle.observers.metrics import Metrics
from proxy.settle.refusals.store import RefusalStore
from proxy.settle.traffic.store import TrafficStore
from proxy.shared.deadline import DeadlinesSection
from selfhosted.health.fleet_view import FleetView
from selfhosted.registry.registry_metrics import RegistryMetrics

READS_AT_ONCE: Final = 4
"""Concurrent reads of the books; fewer than the database's connections, so that finance cannot starve requests."""


class Telemetry(Protocol):
    """The access to metrics without a token, and whether prompts are compared."""

    @property
    def metrics_local(self) -> bool: ...
    @property
    def prompt_caches(self) -> bool: ...


class ServerAddress(Protocol):
    """The address that the server listens on."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def tls(self) -> object | None: ...


class Settings(Protocol):
    """Sections of the effective configuration that pages and routes use."""

    @property
    def server(self) -> ServerAddress: ...
    @property
    def accounts(self) -> AccountsSection: ...
    @property
    def sign_in(self) -> SignInSection: ...
    @property
    def classifier(self) -> ClassifierSection: ...
    @property
    def cost(self) -> CostSection: ...
    @property
    def policy(self) -> PolicyConfig: ...
    @property
    def providers(self) -> ProvidersSection: ...
    @property
    def deadlines(self) -> DeadlinesSection: ...
    @property
    def telemetry(self) -> Telemetry: ...
    @property
    def cache(self) -> CacheSection | None: ...
    @property
    def webhooks(self) -> WebhooksSection: ...


class Identity(NamedTuple):
    """Who is calling: accounts and people, how people sign in, and what was changed by whom."""

    accounts: AccountStore
    people: PeopleStore
    sessions: Sessions
    sign_in: SignIn
    links: OneTimeLinks
    audit: AuditLog
    providers: Providers
    """OpenID providers for sign-in."""
    peppers: tuple[Pepper, ...]
    """Peppers, the current one first."""
    readings: KeyReadings
    """Which keys were used for what no model answers."""


class Finance(NamedTuple):
    """What was used and what it cost."""

    usage: UsageReader
    prices: PriceWatch
    savings: SavingsCalculator
    drain: Drain
    """Brings all journals of this host into the database, or stands by while another process does."""
    reads: asyncio.Semaphore
    """Semaphore of concurrent reads of the books."""
    reprice: Callable[[], Awaitable[object]]
    """Brings prices that were entered into effect, here and in all workers of this host."""
    write_down: Callable[[], Awaitable[object]]
    """Has all workers hand over their counts and their rows for learning, so that other processes see them."""


class ShownMetrics(NamedTuple):
    """The metrics that routes and pages count in."""

    requests: Metrics
    learning: LearningMetrics
    registry: RegistryMetrics


class Jobs(NamedTuple):
    """Requests that no caller waits for."""

    responses: StoredResponses
    background: BackgroundResponses
    answering: Answering
    """Answers a request of a known caller in this process, as if that had sent it."""
    batch: BatchTier | None = None
    """Files and batches; None where they are turned off."""
    callbacks: CallbackDesk | None = None
    """Callbacks of batches; None where these are turned off."""


class Views(NamedTuple):
    """What operators look at."""

    operations: Operations
    refusals: RefusalStore
    traffic: TrafficStore
    findings: FindingStore
    guard: Guard
    """The guard by which this process judges: the same rules as every worker's."""
    workers: Workers
    """The data-plane workers of this host."""
    fleet: FleetView | None = None
    """State of the self-hosted fleet; None without one."""


class Gateway(NamedTuple):
    """The parts of the control plane, wired once by `gateway.process.control_plane` and never replaced while it runs."""

    boot_id: str
    """Id of this process, as in its entries."""
    operator: str
    """Id of the operating organisation, whose admins may change what all organisations share."""
    is_draining: Callable[[], bool]
    config: Callable[[], Settings]
    """Returns the effective configuration; a reload changes it."""
    every_setting: Callable[[], tuple[BaseModel, BaseModel | None]]
    """Returns the effective configuration and the process's environment settings, None where those have become invalid.
    """
    webhooks: frozenset[str]
    """Names of the destinations that budgets may use."""
    metrics_token: str | None
    database: AsyncEngine
    directory: Directory
    limit_book: LimitBook
    rules: Callable[[], PipelineConfig]
    """Returns the rules that requests are planned by now; a reload, a price or a tuning changes them."""
    ready: Callable[[Target], tuple[Deployment, ...]]
    """Returns the deployments that a target has now: of a pool's target those replicas that take work."""
    classifier: OnnxClassifier | HeuristicClassifier
    learning: LearningStore
    identity: Identity
    finance: Finance
    metrics: ShownMetrics
    jobs: Jobs
    views: Views
    refused_parameters: Callable[[], Mapping[str, frozenset[str]]] = dict
    """Returns the parameters that targets refused by their names in the last day, by target, as far as this host knows."""


class State(TypedDict):
    """The typed lifespan state."""

    gateway: Gateway


def gateway_of(request: Request) -> Gateway:
    """Return the gateway that serves this request."""
    found: Gateway = request.state.gateway
    return found


class Keyed(SecurityBase):
    """Base of dependencies that require a key, which the OpenAPI document recognises."""

    model = HTTPBearer(description="An API key: `Authorization: Bearer wb-…`.")
    scheme_name = "key"


class _CallerOf(Keyed):
    """Authenticates the request's key. Raises what `caller_by_key` raises, and BadRequest for a parameter that the route does not
    have.
    """

    async def __call__(self, request: Request) -> Caller:
        caller = await caller_by_key(gateway_of(request).directory, read_headers(request.scope["headers"]))
        check_query(request)
        gateway_of(request).identity.readings.note(caller.key_id)
        return caller


caller_of: Final = _CallerOf()

AuthenticatedCaller = Annotated[Caller, Depends(caller_of)]


def read_scope(caller: Caller) -> ReadScope:
    """Return the scope that a key may read: a member key its team, a finance or admin key its organisation."""
    reads_all = may(principal_of(caller, operator=""), "finance.read")
    return ReadScope(organisation_id=caller.organisation_id, team_id=None if reads_all else caller.team_id)


def check_reads(scope: ReadScope, team_id: str, *, param: str = "team_id") -> None:
    """Raise TeamNotFound for a team outside the scope. Another organisation's has no rows for a finance key, and is no team of its
    own either: `changing.check_teams`.
    """
    if scope.team_id not in {None, team_id}:
        raise TeamNotFound(
            f"There is no team `{team_id[:80]}` for this key: it reads its own, `{scope.team_id}`, alone. A key of the role "
            "finance reads all teams (`weighbridge keys create TEAM --role finance`).",
            param=param,
        )


def narrowed(scope: ReadScope, team_id: str | None) -> ReadScope:
    """Return the scope of one of its teams; None leaves it as it is. Raises TeamNotFound."""
    if team_id is None:
        return scope
    check_reads(scope, team_id)
    return ReadScope(organisation_id=scope.organisation_id, team_id=team_id)


async def _scope_of(caller: AuthenticatedCaller) -> ReadScope:
    return read_scope(caller)


KeyRight = Literal["act", "team.change", "organisation.change", "operations.change"]
"""A right that a route outside the admin API requires of a key: to act at all, to change its own team or its organisation, or what
holds for all organisations.
"""


class KeyWith:
    """A dependency of routes that requires a right, and gives the key's caller."""

    def __init__(self, right: KeyRight) -> None:
        self.right = right

    async def __call__(self, request: Request, caller: AuthenticatedCaller) -> Caller:
        principal = principal_of(caller, gateway_of(request).operator)
        if caller.reads_only if self.right == "act" else not may(principal, self.right, team_id=caller.team_id):
            raise _refusal(self.right, caller, principal)
        return caller


def _refusal(right: KeyRight, caller: Caller, principal: Principal) -> Refused:
    match right:
        case "operations.change" if may(principal, "organisation.change"):
            return OperatorOnly("This holds for every organisation, so it needs an admin key of the operator's own.")
        case "operations.change" | "organisation.change":
            return AdminOnly("This needs a key with the role admin: `weighbridge keys create --role admin`.")
        case "team.change" if not caller.reads_only:
            return NotAllowed(
                f"This key has the role {caller.role}, which may use its team and not change it; use an administrator's key of the team "
                "(`weighbridge keys create TEAM --role admin`)."
            )
        case "team.change" | "act":
            return ReadsOnly()


FinanceReader = Annotated[ReadScope, Depends(_scope_of)]
"""Any valid key, as its read scope."""
AdminCaller = Annotated[Caller, Depends(KeyWith("organisation.change"))]
OperatorCaller = Annotated[Caller, Depends(KeyWith("operations.change"))]
ActingCaller = Annotated[Caller, Depends(KeyWith("act"))]
"""Any key except read-only ones."""
TeamChanger = Annotated[Caller, Depends(KeyWith("team.change"))]
"""A key that may change what belongs to its own team."""
