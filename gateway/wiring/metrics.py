"""Creation of every part's metrics in one registry."""

from typing import NamedTuple

from api.operations.state_metrics import StateMetrics
from api.webhooks.webhook_metrics import WebhookMetrics
from classifier.classifier_metrics import ClassifierMetrics
from cost.budgets.budget_metrics import BudgetMetrics
from cost.events.event_metrics import EventMetrics
from cost.ledger.ledger_metrics import LedgerMetrics
from gateway.plugins.plugin_metrics import PluginMetrics
from gateway.wiring.other_hosts import HostMetrics
from providers.key_metrics import KeyMetrics
from proxy.admit.idempotency.idempotency_metrics import IdempotencyMetrics
from proxy.admit.limits.limit_metrics import LimitMetrics
from proxy.admit.overload_metrics import OverloadMetrics
from proxy.admit.queues.queue_metrics import QueueMetrics
from proxy.batch.batch_metrics import BatchMetrics
from proxy.cache.cache_metrics import CacheMetrics
from proxy.learning.learning_metrics import LearningMetrics
from proxy.settle.observers.metrics import Metrics
from proxy.shared.redis.redis_metrics import RedisMetrics
from selfhosted.discovery.discovery_metrics import DiscoveryMetrics
from selfhosted.health.health_metrics import WatchMetrics
from selfhosted.kv_events.kv_metrics import KvMetrics
from selfhosted.lora.adapter_metrics import AdapterMetrics
from selfhosted.pools.fleet_metrics import FleetMetrics
from selfhosted.prefixes.prefix_metrics import PrefixMetrics
from selfhosted.registry.registry_metrics import RegistryMetrics
from selfhosted.scale.scale_metrics import ScaleMetrics, TurnMetrics


class AllMetrics(NamedTuple):
    """The metrics object of each part."""

    requests: Metrics
    """The request metrics, which also own the registry."""
    classifier: ClassifierMetrics
    overload: OverloadMetrics
    limits: LimitMetrics
    queues: QueueMetrics
    redis: RedisMetrics
    idempotency: IdempotencyMetrics
    learning: LearningMetrics
    ledger: LedgerMetrics
    budgets: BudgetMetrics
    webhooks: WebhookMetrics
    batch: BatchMetrics
    fleet: FleetMetrics
    watch: WatchMetrics
    discovery: DiscoveryMetrics
    registry: RegistryMetrics
    scale: ScaleMetrics
    turns: TurnMetrics
    adapters: AdapterMetrics
    kv_events: KvMetrics
    prefixes: PrefixMetrics
    hosts: HostMetrics
    states: StateMetrics
    cache: CacheMetrics
    plugins: PluginMetrics
    events: EventMetrics
    keys: KeyMetrics


def all_metrics() -> AllMetrics:
    """Create the metrics of one process."""
    requests = Metrics()
    page = requests.registry
    return AllMetrics(
        requests=requests,
        classifier=ClassifierMetrics(page),
        overload=OverloadMetrics(page),
        limits=LimitMetrics(page),
        queues=QueueMetrics(page),
        redis=RedisMetrics(page),
        idempotency=IdempotencyMetrics(page),
        learning=LearningMetrics(page),
        ledger=LedgerMetrics(page),
        budgets=BudgetMetrics(page),
        webhooks=WebhookMetrics(page),
        batch=BatchMetrics(page),
        fleet=FleetMetrics(page),
        watch=WatchMetrics(page, forgets=requests.forgets),
        discovery=DiscoveryMetrics(page),
        registry=RegistryMetrics(page),
        scale=ScaleMetrics(page),
        turns=TurnMetrics(page),
        adapters=AdapterMetrics(page),
        kv_events=KvMetrics(page),
        prefixes=PrefixMetrics(page),
        hosts=HostMetrics(page),
        states=StateMetrics(page),
        cache=CacheMetrics(page),
        plugins=PluginMetrics(page),
        events=EventMetrics(page),
        keys=KeyMetrics(page),
    )
