"""When a pool is scaled by money, what its work costs elsewhere, and what is known of all processes."""

from decimal import Decimal
from typing import Any

import pytest

from cost.fleet.earnings import EarningsReader
from cost.fleet.pool_config import PoolSection, SecondsPerMillion
from gateway.configuration.gateway_config import GatewayConfig
from gateway.wiring.scaling import PoolDemand, PoolSignals, PriceElsewhere, is_economic, sold_elsewhere
from selfhosted.config import PoolConfig, ScaleConfig
from selfhosted.replica import Address, EngineStats, PoolSnapshot, Replica
from selfhosted.scale.model_swap_loop import Wanted
from selfhosted.scale.process_reports import Aims, FleetReport, PoolReport, ProcessReports

POOL = PoolSection(
    name="own",
    targets=("llama",),
    usd_per_gpu_hour=Decimal(3),
    seconds_per_million=SecondsPerMillion(input=Decimal(70), output=Decimal(140)),
)


@pytest.mark.parametrize(
    ("objective", "sold", "economic"),
    [(None, True, True), (None, False, False), ("latency", True, False), ("economic", False, True)],
)
def test_money_decides_where_overflow_has_somewhere_to_go(objective: str | None, sold: bool, economic: bool) -> None:
    """Or where the configuration says so."""
    assert is_economic(ScaleConfig.model_validate({"objective": objective}), sold=sold) is economic


@pytest.mark.parametrize(
    ("bought", "sold"),
    [({}, True), ({"capabilities": ["transcription"]}, False), ({"capabilities": ["embeddings"]}, False)],
)
def test_overflow_goes_to_models_that_chat(bought: dict[str, Any], sold: bool) -> None:
    """A pool whose only neighbour writes down recordings has nowhere to send a chat."""
    deployment = {"kind": "openai", "base_url": "https://api.example.com/v1", "api_key": "env:KEY"}
    own = {
        "model_id": "llama",
        "provider": "self-hosted",
        "deployments": [{**deployment, "base_url": "http://127.0.0.1:1/v1"}],
    }
    other = {"model_id": "other", "provider": "openai", "deployments": [deployment], **bought}
    config = GatewayConfig.model_validate(
        {
            "accounts": {"pepper_file": "pepper"},
            "providers": {"models": [own, other]},
            "cost": {"pools": [POOL.model_dump(mode="json")]},
        }
    )
    assert sold_elsewhere(config) is sold


class Books(EarningsReader):
    """Books that know what is given."""

    def __init__(self, *found: float | None) -> None:
        self._found = list(found)

    async def usd_per_busy_s(self, pool: PoolSection, start_us: int, end_us: int) -> float | None:
        del pool, start_us, end_us
        return self._found.pop(0)


async def test_the_newest_time_that_was_booked_tells_the_price() -> None:
    """A second of a busy replica is a million seventieths of prompt tokens; what was known stays known."""
    prices = PriceElsewhere(Books(None, 0.007, None, None, None), POOL)
    assert prices.usd_per_work is None
    await prices.refresh()
    assert prices.usd_per_work == pytest.approx(0.007 * 70 / 1e6)
    await prices.refresh()
    assert prices.usd_per_work == pytest.approx(0.007 * 70 / 1e6)


def test_signals_are_of_all_processes() -> None:
    """Those that report are summed, and those of other hosts are taken to be like them."""
    now = [1_000.0]
    reports = ProcessReports({"own": Aims(1.0, 0.05)}, lambda: now[0])
    sharers = [2]
    config, nobody = PoolConfig(name="own", targets=("llama",)), PoolSnapshot(pool="own", at=0.0, replicas=())
    signals = PoolSignals(
        config, lambda: nobody, reports, lambda: sharers[0], None, clock=lambda: now[0], batch=lambda: 7.0
    )

    def report(process: str, turned_away_tokens: int, waiting_at_gate: int) -> None:
        told = PoolReport(pool="own", turned_away_tokens=turned_away_tokens, waiting_at_gate=waiting_at_gate)
        reports.hear(process, FleetReport(began_at=1_000.0, pools=(told,)))

    assert signals().waiting_at_gate == 0
    assert signals().batch_work_per_s == 7.0
    now[0] += 10.0
    report("one", 1_000, 3)
    report("two", 500, 1)
    both = signals()
    assert (both.waiting_at_gate, both.input_tokens_per_s) == (4, 150.0)
    now[0] += 1.0
    sharers[0] = 4
    report("one", 1_100, 3)
    report("two", 500, 1)
    four = signals()
    assert four.waiting_at_gate == 8
    assert four.input_tokens_per_s == pytest.approx(200.0)


def test_each_kind_of_replica_has_signals_of_its_own() -> None:
    """Who reads hears of prompts that found no reader, and counts readers; who answers hears of who waits, and counts those that answer."""
    config = PoolConfig.model_validate({"name": "own", "targets": ["llama"], "prefill": {"replicas": "read-*"}})
    reports = ProcessReports({"own": Aims(1.0, 0.05)}, lambda: 1_000.0)
    now = [1_000.0]

    def replica(name: str) -> Replica:
        address = Address(pool="own", name=name, url=f"http://{name}", kind="vllm", source="configured")
        stats = EngineStats(
            at=now[0], running=1, waiting=0, prompt_tokens=0.0, ttft_count=1.0, ttft_sum_s=0.1, kv_usage=0.4
        )
        return Replica(address=address, state="ready", since=0.0, stats=stats)

    def snapshot() -> PoolSnapshot:
        names = ("read-1", "read-2", "write-1")
        return PoolSnapshot(pool="own", at=now[0], replicas=tuple(map(replica, names)))

    answers, reads = (
        PoolSignals(config, snapshot, reports, lambda: 1, None, clock=lambda: now[0], part=part)
        for part in config.parts
    )
    assert (answers().ready, reads().ready) == (1, 2)
    now[0] += 10.0
    told = PoolReport(pool="own", turned_away_tokens=400, unread_tokens=9_000, waiting_at_gate=3)
    reports.hear("one", FleetReport(began_at=1_000.0, pools=(told,)))
    one, other = answers(), reads()
    assert (one.waiting_at_gate, one.kv_used, one.input_tokens_per_s) == (3, 0.4, 40.0)
    assert (other.waiting_at_gate, other.kv_used, other.input_tokens_per_s) == (0, 1.0, 900.0)


def test_all_lines_of_batches_wait_as_one_person_does() -> None:
    """What wants a model that sleeps is who watches; the rest together counts once."""
    reports = ProcessReports({"own": Aims(1.0, 0.05)}, lambda: 1_000.0)
    demand = PoolDemand(("own",), reports, lambda: 1)
    assert demand("own") == Wanted()
    told = PoolReport(pool="own", waiting_at_gate=50, waiting_batch=47, running_batch=9, turned_away=2)
    reports.hear("one", FleetReport(began_at=1_000.0, pools=(told,)))
    assert demand("own") == Wanted(waiting=4, turned_away=2, running_batch=9)
    assert demand("own") == Wanted(waiting=4, running_batch=9)
