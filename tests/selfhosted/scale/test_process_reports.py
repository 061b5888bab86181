"""What all processes of a host tell of their work, summed."""

import msgspec
import pytest

from selfhosted.scale.process_reports import Aims, FleetReport, PoolReport, ProcessReports, TimeCounts


class Host:
    """Reports on a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.reports = ProcessReports({"p": Aims(1.0, 0.05)}, lambda: self.now)

    def hear(self, process: str, *, began_at: float = 1_000.0, pool: str = "p", **told: float) -> None:
        report = msgspec.convert({"pool": pool, **told}, PoolReport)
        self.reports.hear(process, FleetReport(began_at=began_at, pools=(report,)))


def test_counters_are_summed_over_processes_and_a_lost_report_loses_nothing() -> None:
    """They grow in each process from its beginning on."""
    host = Host()
    host.hear("one", turned_away_tokens=100, first_tokens=8, late_first_tokens=2, first_tokens_sum_s=4.0)
    host.hear("two", turned_away_tokens=10)
    host.hear("one", turned_away_tokens=400, first_tokens=16, late_first_tokens=6, first_tokens_sum_s=18.0)
    host.hear("two", turned_away_tokens=10, answers=12, slow_answers=3, tpot_sum_s=0.48)
    assert host.reports.turned_away_tokens("p") == 410
    assert host.reports.first_tokens("p").missed(host.now) == pytest.approx(3 / 8)
    assert host.reports.first_tokens("p").mean(host.now) == pytest.approx(9 / 8)
    assert host.reports.further_tokens("p").missed(host.now) == pytest.approx(1 / 4)
    assert host.reports.further_tokens("p").mean(host.now) == pytest.approx(0.04)


def test_of_a_process_that_was_there_before_only_what_grows_is_news() -> None:
    """Who sums may have begun anew: what was counted before was told to somebody else."""
    host = Host()
    host.hear("old", began_at=10.0, turned_away_tokens=5_000, first_tokens=900)
    assert host.reports.turned_away_tokens("p") == 0
    assert host.reports.first_tokens("p").missed(host.now) is None
    host.hear("old", began_at=10.0, turned_away_tokens=5_200, first_tokens=901)
    assert host.reports.turned_away_tokens("p") == 200
    assert host.reports.first_tokens("p").missed(host.now) == 0.0


def test_who_waits_is_counted_while_its_process_reports() -> None:
    """One that is gone, or has been silent for long, waits for nothing; what it counted stays counted."""
    host = Host()
    host.hear("one", waiting_at_gate=3, turned_away_tokens=7)
    host.hear("two", waiting_at_gate=2)
    assert (host.reports.waiting_at_gate("p"), host.reports.reporting("p")) == (5, 2)
    host.reports.forget("one")
    assert (host.reports.waiting_at_gate("p"), host.reports.reporting("p")) == (2, 1)
    host.now += 6.0
    assert (host.reports.waiting_at_gate("p"), host.reports.reporting("p")) == (0, 0)
    assert host.reports.turned_away_tokens("p") == 7


def test_a_pool_that_is_not_known_is_ignored() -> None:
    """Two versions of a configuration may run for a moment."""
    host = Host()
    host.hear("one", pool="other", waiting_at_gate=3)
    assert host.reports.waiting_at_gate("p") == 0
    with pytest.raises(KeyError):
        host.reports.waiting_at_gate("other")


def test_a_first_token_is_late_beyond_its_target() -> None:
    """Just in time is in time."""
    seen = TimeCounts(1.0)
    for ttft_s in (0.5, 1.0, 1.5):
        seen.saw(ttft_s)
    assert (seen.count, seen.late, seen.sum_s) == (3, 1, 3.0)
