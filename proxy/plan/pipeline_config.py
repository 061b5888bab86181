"""The part of the configuration that the request pipeline uses and a reload may change."""

from collections.abc import Container, Mapping

import msgspec

from cost.savings.comparators import Comparators
from providers.catalog import Catalog
from providers.config import RetryConfig, TimeoutsConfig
from providers.provider_tools import AsWritten
from providers.target import Capability
from proxy.plan.known_names import KnownNames
from proxy.plan.quality_tolerance import Tolerances
from proxy.plan.route_plan import Policy, may_use, refuse_unrun_tools
from proxy.plan.routing_config import CacheMarksConfig
from proxy.shared.deadline import DeadlinesSection


class EscalationRules(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's limits on escalation."""

    max_share: float = 0.1
    """The most escalations, as a share of the requests that may escalate."""
    max_running: int = 64
    min_mean_logprob: float | None = None
    """The mean log-probability of the tokens below which an answer is weak; None disables the check."""
    hold_max_bytes: int = 512 * 1024
    hold_max_s: float = 30.0
    agreement_wait_s: float = 20.0
    """The most seconds that two cheap answers are waited for before the planned target is asked."""
    batch_agreement_from: float | None = 0.99
    """The minimum quality from which two cheap targets may be asked for lines of batches, whatever the team says; None for never."""


class PipelineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An immutable configuration of the pipeline. A reload swaps it whole, so that a request sees one from start to
    end.
    """

    catalog: Catalog
    policy: Policy
    comparators: Comparators
    timeouts: TimeoutsConfig
    retry: RetryConfig
    max_in_flight: int
    max_body_bytes: int
    max_upload_bytes: int
    body_timeout_s: float
    escalation: EscalationRules = EscalationRules()
    pools: Mapping[str, str] = {}
    """Pool of our own GPUs by target id."""
    holdout_share: float = 0.0
    """The share of `auto` requests sent to the reference as an experiment; as many others form the control group."""
    tolerances: Tolerances | None = None
    """The willingness to pay for each quality floor; None means that the most capable target answers."""
    deadlines: DeadlinesSection = DeadlinesSection()
    cache_marks: CacheMarksConfig = CacheMarksConfig()
    answers_digest: bytes = b""
    """A digest of the configuration by which requests are answered; empty where no answers are kept."""

    @property
    def aliases(self) -> Container[str]:
        """The names that stand for a choice among chat models."""
        return self.policy.autos

    @property
    def names(self) -> KnownNames:
        """The names that budgets and limits may have."""
        return KnownNames(self.catalog, self.policy)

    def check_tools(self, written: AsWritten) -> None:
        """Raise BadRequest for tools of a provider that no target runs."""
        refuse_unrun_tools(written, self.catalog)

    def has_model(self, name: str) -> bool:
        """Return True for an alias, a target, and a name that a wildcard matches."""
        return self.catalog.named(name) is not None or name in self.policy.aliases or name in self.policy.autos

    def first_serving(self, capability: Capability, allowed: frozenset[str] | None) -> str | None:
        """Return the first model that has the capability and is allowed; None where there is none."""
        able = (each for each in self.catalog.targets.values() if capability in each.capabilities)
        return next((each.target_id for each in able if may_use(allowed, each)), None)
