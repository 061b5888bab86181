import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from selfhosted.health.hardware import PoolHardware
from selfhosted.health.health_metrics import MAX_REPLICAS, WatchMetrics
from selfhosted.replica import EngineStats

_ROOT = Path(__file__).parents[3]


def test_a_replica_shows_its_state_and_its_load() -> None:
    """One state at a time; a load that is unknown is no number; what left shows nothing."""

    def shown() -> set[str]:
        return set(
            re.findall(r"^weighbridge_replica_[a-z_]+\{.*(?<! 0\.0)$", generate_latest(registry).decode(), re.MULTILINE)
        )

    registry = CollectorRegistry()
    metrics = WatchMetrics(registry)
    metrics.set_replica_state("llama", "a", "starting")
    metrics.set_replica_state("llama", "a", "ready")
    for version in ("v1", "v2"):
        metrics.set_replica_version("llama", "a", version)
    metrics.set_replica_version("llama", "never-seen", "v1")
    metrics.set_replica_load(
        "llama", "a", EngineStats(at=1.0, running=3, waiting=2, gpu_utilisation=0.5, tokens_per_s=900.0)
    )
    assert shown() == {
        'weighbridge_replica_state{pool="llama",replica="a",state="ready"} 1.0',
        'weighbridge_replica_version{pool="llama",replica="a",version="v2"} 1.0',
        'weighbridge_replica_running{pool="llama",replica="a"} 3.0',
        'weighbridge_replica_waiting{pool="llama",replica="a"} 2.0',
        'weighbridge_replica_kv_usage{pool="llama",replica="a"} NaN',
        'weighbridge_replica_gpu_memory{pool="llama",replica="a"} NaN',
        'weighbridge_replica_gpu_utilisation{pool="llama",replica="a"} 0.5',
        'weighbridge_replica_tokens_per_second{pool="llama",replica="a"} 900.0',
        'weighbridge_replica_computed_tokens_per_second{pool="llama",replica="a"} NaN',
        'weighbridge_replica_preemptions_per_second{pool="llama",replica="a"} NaN',
    }
    metrics.set_replica_load("llama", "a", None)
    assert 'weighbridge_replica_running{pool="llama",replica="a"} NaN' in shown()
    for _ in range(2):
        metrics.forget_replica("llama", "a")
        assert shown() == set()
    metrics.set_replica_load("llama", "a", None)
    assert shown() == set()


def test_replicas_that_come_and_go_do_not_use_up_the_labels() -> None:
    """So many are shown at once, whoever they are."""
    registry = CollectorRegistry()
    metrics = WatchMetrics(registry)
    for number in range(MAX_REPLICAS + 5):
        metrics.set_replica_state("llama", f"gone-{number}", "ready")
        metrics.forget_replica("llama", f"gone-{number}")
    for number in range(MAX_REPLICAS + 5):
        metrics.set_replica_state("llama", f"here-{number}", "ready")
    states = next(each for each in registry.collect() if each.name == "weighbridge_replica_state")
    assert sum(sample.value for sample in states.samples) == MAX_REPLICAS


def test_what_a_watch_counts() -> None:
    """How readings ended, and what caches found."""
    registry = CollectorRegistry()
    metrics = WatchMetrics(registry)
    metrics.count_scrape("llama", "too_large")
    metrics.set_prefix_hit_rate("llama", 0.75)
    assert registry.get_sample_value("weighbridge_scrapes_total", {"pool": "llama", "result": "too_large"}) == 1
    assert registry.get_sample_value("weighbridge_pool_prefix_hit_rate", {"pool": "llama"}) == 0.75


_WATCHING_WORKER = """
import sys, warnings
warnings.simplefilter("error")
from gateway.wiring.metrics import all_metrics
every = all_metrics()
metrics = every.watch
metrics.set_replica_state("llama", "a", "ready")
metrics.set_replica_load("llama", "a", None)
metrics.forget_replica("llama", "a")
metrics.set_replica_state("llama", "b", "ready")
sys.stdout.write(every.requests.render()[0].decode())
"""


@pytest.mark.long
def test_workers_show_a_replica_once(tmp_path: Path) -> None:
    """With several workers each watches all replicas: they are not added up, and one that left is in no state."""
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(_ROOT)}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", _WATCHING_WORKER], env=environment, check=True, capture_output=True, text=True
        )
    lines = re.findall(r"^weighbridge_replica_state\{.*(?<! 0\.0)$", done.stdout, re.MULTILINE)
    assert lines == ['weighbridge_replica_state{pool="llama",replica="b",state="ready"} 1.0']


def test_what_is_known_of_hardware_is_shown() -> None:
    """In dollars as Prometheus has numbers; what is not known has no series."""
    registry = CollectorRegistry()
    metrics = WatchMetrics(registry)
    metrics.set_pool_hardware("llama", PoolHardware(gpus=2, nanousd_per_hour=5_900_000_000))
    assert registry.get_sample_value("weighbridge_pool_gpus_per_replica", {"pool": "llama"}) == 2
    assert registry.get_sample_value("weighbridge_pool_usd_per_replica_hour", {"pool": "llama"}) == 5.9
    assert registry.get_sample_value("weighbridge_pool_peak_flops", {"pool": "llama"}) is None
