"""What is tallied and written is what would have been counted one by one."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from proxy.settle.observers.tallies import CounterTally, HistogramTally

BOUNDS = (0.25, 0.5, 1.0, 4.0)


def page(registry: CollectorRegistry) -> str:
    # A creation time differs between two registries.
    return "\n".join(line for line in generate_latest(registry).decode().splitlines() if "_created" not in line)


@given(st.lists(st.sampled_from([0.0, 0.25, 0.375, 0.5, 1.0, 1.5, 4.0, 4.5, 100.0]), max_size=40), st.integers(1, 7))
def test_a_histogram_has_what_it_would_have_observed(values: list[float], every: int) -> None:
    """Values on a bound, beyond the last one, and none at all, however often it is written."""
    one, other = CollectorRegistry(), CollectorRegistry()
    plain = Histogram("h", "h", ("of",), buckets=BOUNDS, registry=one).labels("a")
    tally = HistogramTally(Histogram("h", "h", ("of",), buckets=BOUNDS, registry=other).labels("a"), BOUNDS)
    for number, value in enumerate(values):
        plain.observe(value)
        tally.observe(value)
        if number % every == 0:
            tally.write()
    tally.write()
    tally.write()
    assert page(one) == page(other)


@given(st.lists(st.integers(0, 10**6), max_size=20))
def test_a_counter_has_the_sum(amounts: list[int]) -> None:
    """Written once or twice, it counts each amount once."""
    registry = CollectorRegistry()
    tally = CounterTally(Counter("c", "c", registry=registry))
    for amount in amounts:
        tally.amount += amount
    tally.write()
    tally.write()
    assert registry.get_sample_value("c_total") == sum(amounts)
