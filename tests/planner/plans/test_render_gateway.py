"""The gateway's part."""

from decimal import Decimal

import msgspec
import yaml
from pydantic import TypeAdapter

from cost.fleet.pool_config import PoolSection
from planner.plans.launch import READ_AHEAD_TOKENS
from planner.plans.planning import plan
from planner.plans.render_gateway import gateway_snippet
from planner.plans.serving import as_yaml, from_launch
from selfhosted.config import SelfhostedSection
from tests.planner.plans.questions import question


def test_the_gateway_takes_it_as_it_is() -> None:
    """Pools, their bill and their queue validate, name each other, and have the plan's figures."""
    found = plan(question(kv_events_port=5557, usd_per_gpu_hour=Decimal("2.35"), overhead=Decimal("1.3")))
    serving = from_launch(found.launch, "h100", replicas=found.replicas)
    snippet = yaml.safe_load(as_yaml([gateway_snippet(found, serving)]))
    (pool,) = SelfhostedSection.model_validate(snippet["selfhosted"]).pools
    (bill,) = TypeAdapter(tuple[PoolSection, ...]).validate_python(snippet["cost"]["pools"])
    assert pool.name == bill.name == "h100"
    assert pool.targets == bill.targets == ("llama-3-70b",)
    assert pool.priority_scheduling
    assert pool.max_num_seqs == found.limits.sequences
    assert pool.read_ahead_tokens == READ_AHEAD_TOKENS
    assert (pool.watch.kv_events_port, pool.watch.kv_replay_port) == (5557, 5558)
    assert pool.kubernetes is not None
    assert pool.kubernetes.service == "h100"
    assert (bill.gpus_per_replica, bill.usd_per_gpu_hour, bill.overhead) == (2, Decimal("2.35"), Decimal("1.3"))
    assert snippet["queues"] == {"h100": {"targets": ["llama-3-70b"]}}


def test_each_rank_is_a_replica_of_the_gateways() -> None:
    """Its ports are open, and where the gateway looks for them."""
    found = plan(question(kv_events_port=5557))
    serving = msgspec.structs.replace(from_launch(found.launch, "h100", replicas=1), ranks=2)
    (pool,) = SelfhostedSection.model_validate(gateway_snippet(found, serving)["selfhosted"]).pools
    assert pool.data_parallel_ranks == 2
    assert (pool.watch.kv_events_port, pool.watch.kv_replay_port) == (5557, 5559)
    assert serving.kv_ports == [
        ("kv-events", 5557),
        ("kv-events-1", 5558),
        ("kv-replay", 5559),
        ("kv-replay-1", 5560),
    ]
    one = msgspec.structs.replace(serving, ranks=1)
    assert "data_parallel_ranks" not in gateway_snippet(found, one)["selfhosted"]["pools"][0]


def test_without_a_price_there_is_no_bill() -> None:
    """Rather than one of nothing."""
    found = plan(question())
    found = type(found)(**{name: getattr(found, name) for name in found.__struct_fields__} | {"cost": None})
    assert "cost" not in gateway_snippet(found, from_launch(found.launch, "h100", replicas=1))


def test_one_machine_has_fixed_replicas_and_a_key() -> None:
    """As `render compose` names them; their number is nobody's to change."""
    found = plan(question(kv_events_port=5557))
    serving = from_launch(found.launch, "h100", replicas=2)
    serving = type(serving)(
        **{name: getattr(serving, name) for name in serving.__struct_fields__} | {"key_secret": "k"}
    )
    snippet = yaml.safe_load(as_yaml([gateway_snippet(found, serving, one_machine=True)]))
    (pool,) = SelfhostedSection.model_validate(snippet["selfhosted"]).pools
    assert [replica.url for replica in pool.replicas] == ["http://h100-0:8000", "http://h100-1:8000"]
    assert pool.scale is None
    assert pool.kubernetes is None
    assert pool.api_key == "env:ENGINE_KEY"
