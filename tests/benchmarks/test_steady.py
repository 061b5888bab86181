"""What the long run calls flat."""

from collections.abc import Sequence

import pytest

from benchmarks.steady import Look, figures_of


def _looks(sizes: Sequence[int], files: int = 40) -> list[Look]:
    return [Look(float(at), size * 1_000_000, files) for at, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "flat"),
    [
        ([100, 120, 150, 150, 150, 151, 150, 152], True),
        ([100, 120, 150, 150, 155, 158, 160, 165], False),
        ([100, 100, 150, 150, 120, 110, 110, 110], True),
    ],
)
def test_what_fills_at_first_is_no_growth(sizes: list[int], *, flat: bool) -> None:
    assert figures_of(_looks(sizes))["flat"] is flat


def test_open_files_that_stay_open_are_growth() -> None:
    looks = [Look(float(at), 100, 40 + 5 * at) for at in range(8)]
    assert figures_of(looks)["flat"] is False
