"""The part of the configuration that the request pipeline uses and a reload may change."""

from collections.abc import Mapping

import msgspec

from cost.savings.comparators import Comparators
from providers.catalog import Catalog
from providers.config import RetryConfig, TimeoutsConfig
from proxy.plan.escalation_rules import EscalationRules
from proxy.plan.quality_tolerance import Tolerances
from proxy.plan.route_plan import Policy
from proxy.plan.routing_config import CacheMarksConfig
from proxy.shared.deadline import DeadlinesSection


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

    def has_model(self, name: str) -> bool:
        """Return True for an alias, a target, and a name that a wildcard matches."""
        return self.catalog.named(name) is not None or name in self.policy.aliases or name in self.policy.autos
