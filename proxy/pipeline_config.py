"""Everything about the pipeline that a reload may change."""

from collections.abc import Mapping

import msgspec

from cost.claim.comparators import Comparators
from providers.catalog import Catalog
from providers.config import RetryConfig, TimeoutsConfig
from proxy.deadlines.deadlines_config import DeadlinesSection
from proxy.escalation import EscalationRules
from proxy.policy import Policy
from proxy.tolerance import Tolerances


class PipelineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Swapped whole by a reload, so that a request sees one configuration from start to end."""

    catalog: Catalog
    policy: Policy
    comparators: Comparators
    timeouts: TimeoutsConfig
    retry: RetryConfig
    max_in_flight: int
    max_body_bytes: int
    body_timeout_s: float
    slow_reader_s: float
    escalation: EscalationRules = EscalationRules()
    pools: Mapping[str, str] = {}
    """Target → the pool of our own GPUs that it runs on."""
    holdout_share: float = 0.0
    """Of `auto`'s requests this share goes to the reference instead, and as many are counted beside them."""
    tolerances: Tolerances | None = None
    """Without them each prompt may lose what the floor gives up."""
    deadlines: DeadlinesSection = DeadlinesSection()
