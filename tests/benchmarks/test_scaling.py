"""How the scaling benchmark judges."""

from pathlib import Path

import pytest

from benchmarks.scaling import SOURCES, Case, Ran, best_of, fixed_fleets, names, rise_and_fall


def ran(scaler: str, replicas: int, missed: float, hours: float | None = None) -> Ran:
    return Ran(
        scaler=scaler,
        replicas=replicas,
        most=replicas,
        gpu_hours=2.0 * replicas if hours is None else hours,
        missed=missed,
    )


def case(ours: Ran, *, cold: float = 0.01, keda: float = 99.0) -> Case:
    return Case(
        name="code/1",
        kept_apart=False,
        fixed=(ran("fixed", 1, 0.9), ran("fixed", 3, 0.09), ran("fixed", 4, 0.0)),
        ours=ours,
        others=(ran("keda", 3, 0.0, keda),),
        cold=ran("weighbridge", 2, cold),
        at_once=ran("at once", 2, 0.02),
    )


def test_the_best_fixed_fleet_keeps_the_aims() -> None:
    """The cheapest of those that do, although one that misses nearly everything has the least bill; of all where none does."""
    assert case(ran("weighbridge", 3, 0.0)).best.replicas == 3
    assert best_of((ran("fixed", 1, 0.9), ran("fixed", 2, 0.8))).replicas == 1


def test_each_bar_is_told_that_is_missed() -> None:
    """Against the best fixed fleet, against others, and from two replicas."""
    met = case(ran("weighbridge", 3, 0.1, 6.5))
    assert met.ratio == pytest.approx(6.5 * 1.1 / (6 * 1.09))
    assert met.missed_bars() == []
    worse = case(ran("weighbridge", 3, 0.1, 7.0), cold=0.08, keda=6.9)
    assert worse.missed_bars() == [
        "1.18 of the best fixed fleet's bill",
        "bill above keda's",
        "cold 8.0% missed, 2.0% at the least",
    ]


@pytest.mark.parametrize("needed", [1, 2, 9, 23])
def test_the_smallest_fleet_that_keeps_the_aims_is_among_those_tried(needed: int) -> None:
    """And one that does not, where there is a smaller one."""
    tried = list(fixed_fleets(lambda replicas: ran("fixed", replicas, 0.05 if replicas >= needed else 0.5)))
    assert best_of(tuple(tried)).replicas == needed
    assert needed == 1 or needed - 1 in {each.replicas for each in tried}


def test_what_is_not_there_is_told_and_left_out(tmp_path: Path) -> None:
    """Without a folder, and with one that has some of the traces: the others run all the same, their own load before more of it."""
    made_up = [name for name, source in SOURCES.items() if not source.file]
    found, left_out = names(None)
    assert found == [f"{name}/{users}" for users in (1, 4) for name in made_up]
    assert len(left_out) == len(SOURCES) - len(made_up)
    (tmp_path / "azure_code.csv").touch()
    found, left_out = names(tmp_path)
    assert "code/1" in found
    assert any("azure_conv.csv is not in" in each for each in left_out)


def test_the_made_up_hour_rises_and_falls() -> None:
    """In order, and within its hour."""
    trace = rise_and_fall()
    counts = [sum(600 * part <= each.at_s < 600 * (part + 1) for each in trace.requests) for part in range(6)]
    assert counts[0] < counts[1] < counts[2] > counts[3] > counts[4] > counts[5]
    assert 3_500 < trace.duration_s <= 3_600
    assert all(a.at_s <= b.at_s for a, b in zip(trace.requests, trace.requests[1:], strict=False))
