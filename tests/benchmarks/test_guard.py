"""What the guard of a request's cost says of its measurements."""

import pytest

from benchmarks.guard import BUSY_CORES, Try, verdict
from benchmarks.processes import machine_cpu_s, own_cpu_s


@pytest.mark.parametrize(
    ("tries", "status"),
    [
        ([Try(3.9, 0.0), Try(3.9, 0.0), Try(3.9, 0.0)], 1),
        ([Try(3.9, 0.0), Try(3.7, 0.0)], 0),
        ([Try(3.9, 1.2), Try(3.7, 1.2)], 0),
        ([Try(3.9, 1.2), Try(4.4, 0.9), Try(4.1, 0.5)], 0),
        ([Try(3.9, 1.2), Try(4.4, BUSY_CORES), Try(4.1, 0.5)], 1),
        ([Try(3.9, 0.0, 310.0), Try(3.9, 0.0, 290.0)], 0),
        ([Try(3.9, 0.0, 310.0), Try(3.9, 0.0, 180.0)], 1),
    ],
)
def test_a_busy_machine_acquits_and_never_condemns(
    tries: list[Try], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verdict(tries, 3.78, 160.0) == status
    told = capsys.readouterr()
    assert ("not judged" in told.out) == (status == 0 and all(each.ratio > 3.78 for each in tries))
    assert bool(told.err) == (status == 1)


def test_what_this_process_uses_is_its_own() -> None:
    own_before, all_before = own_cpu_s(), machine_cpu_s()
    assert all_before is not None
    while own_cpu_s() - own_before < 0.1:
        sum(range(10_000))
    all_after = machine_cpu_s()
    assert all_after is not None
    # Both are told in ticks of 10 ms.
    assert all_after - all_before >= 0.05
