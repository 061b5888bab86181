"""Two models on one GPU in simulated time: our rule of turns beside first come, first served.

`make bench-turns` prints the table of docs/fleet.md. Each model gives four answers of four seconds at once; an engine takes 3 s to
fall asleep and 5 s to wake. Nothing of it was measured on a GPU.
"""

import statistics
from typing import Final

from gateway.table import print_table
from selfhosted.model_swap.turns import Rules
from tests.selfhosted.model_swap.test_turns import Box

_POOLS: Final = ("a", "b")
_RULES: Final = {
    "this rule": Rules(pools=_POOLS, least_awake_s=30, most_wait_s=300, drain_s=120, switch_s=20),
    "first come, first served": Rules(pools=_POOLS, least_awake_s=0, most_wait_s=1, drain_s=120, switch_s=20),
}
_RATES: Final = ((0.01, 0.01), (0.05, 0.05), (0.2, 0.02), (0.2, 0.2), (0.35, 0.35))
_SECONDS: Final = 7_200
_SEEDS: Final = range(3)


def cell(rules: Rules, rates: tuple[float, float]) -> str:
    """Return the mean wait of those who were served, switches an hour, and who still waits at the end."""
    waits: list[int] = []
    switches = left = 0
    for seed in _SEEDS:
        box = Box(rules, seed=seed)
        for _ in range(_SECONDS):
            box.step(dict(zip(_POOLS, rates, strict=True)))
        waits += [wait for each in box.waits.values() for wait in each]
        switches += len(box.woken)
        left += sum(map(len, box.waiting.values()))
    hours = len(_SEEDS) * _SECONDS / 3_600
    return f"{statistics.mean(waits):,.1f} s, {switches / hours:.0f}, {left} left"


def main() -> None:
    """Print the table."""
    rows = [
        [f"{first:g} and {second:g}", *(cell(rules, (first, second)) for rules in _RULES.values())]
        for first, second in _RATES
    ]
    print_table(["requests a second", *_RULES], rows, right=())


if __name__ == "__main__":
    main()
