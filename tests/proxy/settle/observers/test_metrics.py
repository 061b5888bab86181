import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from providers.breaker import BreakerState
from proxy.settle.observers.metrics import MAX_LABEL_VALUES, Metrics
from tests.proxy.settle.observers.outcomes import an_attempt, an_outcome

_ROOT = Path(__file__).parents[4]


def _samples(metrics: Metrics, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    metrics.write()
    body, _ = metrics.render()
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
        if sample.name == name
    }


def _sum(metrics: Metrics, name: str, **labels: str) -> float:
    found = _samples(metrics, name)
    return sum(value for key, value in found.items() if labels.items() <= dict(key).items())


def test_a_success_is_counted_once_everywhere() -> None:
    """One outcome moves each of its series by exactly what it says."""
    metrics = Metrics()
    metrics.finished(an_outcome())
    labels = {"target": "llama-3-70b", "tier": "interactive"}
    assert _sum(metrics, "weighbridge_requests_total", team="team_1", status="200", **labels) == 1
    assert _sum(metrics, "weighbridge_ttft_seconds_count", **labels) == 1
    assert _sum(metrics, "weighbridge_ttft_seconds_sum", **labels) == pytest.approx(0.15)
    assert _sum(metrics, "weighbridge_inter_token_seconds_sum", **labels) == pytest.approx(0.012)
    assert _sum(metrics, "weighbridge_request_duration_seconds_sum", **labels) == pytest.approx(0.25)
    assert _sum(metrics, "weighbridge_tokens_total", direction="input", team="team_1", **labels) == 800
    assert _sum(metrics, "weighbridge_tokens_total", direction="cached_input", **labels) == 100
    assert _sum(metrics, "weighbridge_tokens_total", direction="output", **labels) == 200
    assert _sum(metrics, "weighbridge_cost_usd_total", team="team_1", target="llama-3-70b") == pytest.approx(0.0015)
    assert _sum(metrics, "weighbridge_baseline_usd_total", team="team_1") == pytest.approx(0.004)
    assert _sum(metrics, "weighbridge_attempts_total", deployment="llama-3-70b/a", result="ok") == 1
    assert _sum(metrics, "weighbridge_classifier_seconds_count", source="onnx") == 1
    assert _sum(metrics, "weighbridge_refusals_total") == 0
    assert _sum(metrics, "weighbridge_unpriced_requests_total") == 0


def test_a_continued_stream_is_counted_by_how_its_rest_ended() -> None:
    """The attempt that broke off is one of any; the one that went on is told from it."""
    metrics = Metrics()
    rest = msgspec.structs.replace(an_attempt(), continues=True)
    metrics.finished(an_outcome(attempts=(an_attempt(result="cut"), rest)))
    assert _samples(metrics, "weighbridge_continued_streams_total") == {
        (("result", "ok"), ("target", "llama-3-70b")): 1
    }


def test_counts_without_a_meter_are_counted() -> None:
    """One for each name in the usage of an attempt."""
    metrics = Metrics()
    odd = msgspec.structs.replace(an_attempt(), unknown=("citation_tokens", "prompt_tokens_details.smell_tokens"))
    metrics.finished(an_outcome(attempts=(odd, an_attempt())))
    assert _samples(metrics, "weighbridge_unknown_usage_details_total") == {(("target", "llama-3-70b"),): 2}


def test_a_pools_versions_are_timed_apart() -> None:
    """Each attempt there counts, also one that was cut; a replica that says no version is told as such."""
    metrics = Metrics()
    of_pool = msgspec.structs.replace(an_attempt(), pool="h100", version="v2", ttft_s=0.3, tpot_s=0.02)
    unsaid = msgspec.structs.replace(of_pool, version="", tpot_s=None)
    metrics.finished(an_outcome(attempts=(of_pool, unsaid, an_attempt())))
    labels = {"pool": "h100", "version": "v2", "tier": "interactive"}
    assert _sum(metrics, "weighbridge_pool_ttft_seconds_sum", **labels) == pytest.approx(0.3)
    assert _sum(metrics, "weighbridge_pool_inter_token_seconds_sum", **labels) == pytest.approx(0.02)
    assert _sum(metrics, "weighbridge_pool_ttft_seconds_count") == 2
    assert _sum(metrics, "weighbridge_pool_inter_token_seconds_count", version="-") == 0


def test_the_promised_second_is_a_bucket_of_ttft() -> None:
    """How many first tokens came within 1 s can be read exactly."""
    metrics = Metrics()
    for ttft_s in (0.9, 1.0, 1.01):
        metrics.finished(an_outcome(ttft_s=ttft_s))
    assert _sum(metrics, "weighbridge_ttft_seconds_bucket", le="1.0") == 2


def test_a_refusal_is_counted_by_its_code() -> None:
    """A request that no target served has a code, no tokens, and no cost that looks free."""
    metrics = Metrics()
    metrics.finished(
        an_outcome(
            status=429,
            error_code="rate_limit_exceeded",
            target_id=None,
            attempts=(),
            cost_nanousd=None,
            input_tokens=0,
            cached_input_tokens=0,
            output_tokens=0,
            ttft_s=None,
            tpot_s=None,
            classify_s=None,
        )
    )
    assert _sum(metrics, "weighbridge_refusals_total", code="rate_limit_exceeded", status="429") == 1
    assert _sum(metrics, "weighbridge_requests_total", target="none", status="429") == 1
    assert _sum(metrics, "weighbridge_tokens_total") == 0
    assert _sum(metrics, "weighbridge_unpriced_requests_total") == 0
    assert _sum(metrics, "weighbridge_ttft_seconds_count") == 0


def test_a_stream_that_broke_keeps_its_status_and_counts_as_refused() -> None:
    """After the first byte the status stays 200; the error code tells."""
    metrics = Metrics()
    metrics.finished(an_outcome(error_code="upstream_stream_cut"))
    assert _sum(metrics, "weighbridge_refusals_total", code="upstream_stream_cut", status="200") == 1


def test_an_unknown_cost_is_not_zero() -> None:
    """An answer without a price adds to no sum, neither cost nor baseline, and is counted apart."""
    metrics = Metrics()
    metrics.finished(an_outcome(cost_nanousd=None))
    assert _sum(metrics, "weighbridge_unpriced_requests_total", team="team_1", target="llama-3-70b") == 1
    assert _sum(metrics, "weighbridge_cost_usd_total") == 0
    assert _sum(metrics, "weighbridge_baseline_usd_total") == 0


def test_only_a_change_of_target_is_a_fallback() -> None:
    """A retry at the same target is an attempt and no fallback."""
    metrics = Metrics()
    attempts = (an_attempt(result="error"), an_attempt(result="timeout"), an_attempt("gpt-4o"))
    metrics.finished(an_outcome(attempts=attempts, target_id="gpt-4o"))
    assert _samples(metrics, "weighbridge_fallbacks_total") == {
        (("from_target", "llama-3-70b"), ("to_target", "gpt-4o")): 1
    }
    assert _sum(metrics, "weighbridge_attempts_total") == 3
    assert _sum(metrics, "weighbridge_attempts_total", result="timeout") == 1


def test_values_beyond_the_cap_share_one_series() -> None:
    """However many teams, error codes and targets there are, a label has at most cap + 1 values."""
    metrics = Metrics(max_label_values=3)
    for number in range(50):
        metrics.finished(
            an_outcome(team_id=f"team_{number}", error_code=f"code_{number}", target_id=f"target_{number}")
        )
    for name, label in (
        ("weighbridge_requests_total", "team"),
        ("weighbridge_requests_total", "target"),
        ("weighbridge_refusals_total", "code"),
    ):
        values = {dict(key)[label] for key in _samples(metrics, name)}
        assert len(values) == 4
        assert "other" in values
    assert _sum(metrics, "weighbridge_requests_total") == 50
    assert MAX_LABEL_VALUES == 1_000


def test_a_known_value_keeps_its_name_after_the_cap() -> None:
    """Reaching the cap does not take away a name that was already counted."""
    metrics = Metrics(max_label_values=1)
    for team_id in ("first", "second", "first"):
        metrics.finished(an_outcome(team_id=team_id))
    assert _sum(metrics, "weighbridge_requests_total", team="first") == 2
    assert _sum(metrics, "weighbridge_requests_total", team="other") == 1


@pytest.mark.parametrize(("state", "value"), [("closed", 0), ("half-open", 1), ("open", 2), ("paced", 3)])
def test_a_breaker_shows_its_state(state: BreakerState, value: int) -> None:
    """0 closed, 1 half-open, 2 open, 3 set aside for its provider's pace."""
    metrics = Metrics()
    metrics.set_breaker("gpt-4o/a", state)
    assert _sum(metrics, "weighbridge_breaker_state", deployment="gpt-4o/a") == value


def test_gauges_follow_what_is_true_now() -> None:
    """In-flight goes up and down, the build names a version."""
    metrics = Metrics()
    metrics.set_in_flight(1)
    assert _sum(metrics, "weighbridge_in_flight_requests") == 1
    ((labels, value),) = _samples(metrics, "weighbridge_build_info").items()
    assert dict(labels)["version"]
    assert value == 1


def test_the_content_type_is_the_text_format() -> None:
    """Every Prometheus can read what is served."""
    _, content_type = Metrics().render()
    assert content_type.startswith("text/plain; version=0.0.4")


_WORKER = """
import sys
from proxy.settle.observers.metrics import Metrics
from tests.proxy.settle.observers.outcomes import an_outcome
metrics = Metrics()
metrics.set_in_flight(1)
metrics.set_breaker("gpt-4o/a", sys.argv[1])
metrics.finished(an_outcome())
metrics.write()
sys.stdout.write(metrics.render()[0].decode())
"""


def test_workers_are_summed(tmp_path: Path) -> None:
    """With several workers any one renders the sum of all: counters added, the worst breaker shown."""
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(_ROOT)}
    for state in ("open", "closed"):
        done = subprocess.run(
            [sys.executable, "-c", _WORKER, state], env=environment, check=True, capture_output=True, text=True
        )
    samples = {
        (sample.name, sample.labels.get("deployment"), sample.labels.get("status")): sample.value
        for family in text_string_to_metric_families(done.stdout)
        for sample in family.samples
    }
    assert samples["weighbridge_requests_total", None, "200"] == 2
    assert samples["weighbridge_in_flight_requests", None, None] == 2
    assert samples["weighbridge_breaker_state", "gpt-4o/a", None] == 2
    assert samples["weighbridge_build_info", None, None] == 1


def test_a_dead_worker_leaves_the_gauges(tmp_path: Path) -> None:
    """What a worker counted stays counted when it is gone; what it held is no longer in flight."""
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(_ROOT)}
    forget = (
        _WORKER
        + "\nfrom proxy.settle.observers.metrics import forget_worker\nimport os\nforget_worker(os.getpid(), os.environ['PROMETHEUS_MULTIPROC_DIR'])\n"
    )
    subprocess.run([sys.executable, "-c", forget, "open"], env=environment, check=True, capture_output=True)
    done = subprocess.run(
        [sys.executable, "-c", _WORKER, "closed"], env=environment, check=True, capture_output=True, text=True
    )
    samples = {
        (sample.name, sample.labels.get("deployment")): sample.value
        for family in text_string_to_metric_families(done.stdout)
        for sample in family.samples
    }
    assert samples["weighbridge_in_flight_requests", None] == 1
    assert samples["weighbridge_breaker_state", "gpt-4o/a"] == 0


def test_deployments_that_left_leave_nothing_behind() -> None:
    """Thousands of replicas in a row take no more memory, and no more of the page, than those that are there."""
    metrics = Metrics()
    for number in range(MAX_LABEL_VALUES + 5):
        deployment = f"llama/gone-{number}"
        metrics.set_breaker(deployment, "open")
        metrics.finished(an_outcome(attempts=(msgspec.structs.replace(an_attempt(), deployment_id=deployment),)))
        metrics.keep_deployments({"llama/here"})
    metrics.set_breaker("llama/here", "half-open")
    metrics.keep_deployments({"llama/here"})
    shown = metrics.render()[0].decode()
    assert "gone-" not in shown
    assert 'weighbridge_breaker_state{deployment="llama/here"} 1.0' in shown
