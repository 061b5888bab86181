"""How many sound versions the rollback rule rolls back, and after how much it finds bad ones.

    python -m benchmarks.rollouts [--trials 100] [--hours 24]

A sound version is served beside itself at 5 and 50 % of the traffic, where 0.1, 1 and 3 % of the attempts fail, and looked at
every ten seconds for a day. A bad one fails at 20 %, or takes three times as long for each further token. Nothing runs but
the evidence itself, at five attempts a second.
"""

import argparse
import random
import statistics
import time
from typing import Final

from selfhosted.rollouts.evidence import ALARM, Evidence, Side
from selfhosted.rollouts.versions import Rule

LOOK_S: Final = 10
PER_LOOK: Final = 50
SHARES: Final = (0.05, 0.5)
FAILURE_RATES: Final = (0.001, 0.01, 0.03)
MOST_FALSE: Final = 0.01
_RULE: Final = Rule()
_BAD_TRIALS: Final = 100
_MOST_LOOKS: Final = 1_000


def first_alarm(
    draws: random.Random, share: float, fails: tuple[float, float], *, looks: int, slower: float | None = None
) -> int | None:
    """Return the number of the look at which the rule would roll the candidate back; None if it never does. `fails` are the
    failure rates of the stable version and of the candidate; `slower` draws times for each further token.
    """
    evidence = Evidence()
    for look in range(1, looks + 1):
        of_candidate = sum(draws.random() < share for _ in range(PER_LOOK))
        sides = []
        for count, rate, scale in ((PER_LOOK - of_candidate, fails[0], 1.0), (of_candidate, fails[1], slower or 1.0)):
            failed = sum(draws.random() < rate for _ in range(count))
            times = () if slower is None else tuple(scale * draws.gammavariate(9, 0.003) for _ in range(count))
            sides.append(Side(attempts=count, failed=failed, tpot_s=times))
        evidence.add(sides[0], sides[1], _RULE)
        if evidence.whole(_RULE) >= ALARM:
            return look
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100, help="days of a sound version in each place")
    parser.add_argument("--hours", type=int, default=24)
    arguments = parser.parse_args()
    looks = arguments.hours * 3_600 // LOOK_S
    began, met = time.perf_counter(), True
    print(f"{'share':>6} {'failures':>9} {'sound versions rolled back':>28}")
    for share in SHARES:
        for rate in FAILURE_RATES:
            found = [
                first_alarm(random.Random(f"{share} {rate} {trial}"), share, (rate, rate), looks=looks)
                for trial in range(arguments.trials)
            ]
            backs = sum(each is not None for each in found)
            met &= backs <= max(1, MOST_FALSE * arguments.trials)
            spent_s = time.perf_counter() - began
            print(f"{share:>6.0%} {rate:>9.1%} {f'{backs} of {arguments.trials}':>28}   {spent_s:6.0f} s", flush=True)
    for share in SHARES:
        for name, fails, slower in (("20 % errors", (0.001, 0.2), None), ("3 x time a token", (0.001, 0.001), 3.0)):
            after = [
                PER_LOOK
                * (first_alarm(random.Random(trial), share, fails, looks=_MOST_LOOKS, slower=slower) or _MOST_LOOKS)
                for trial in range(_BAD_TRIALS)
            ]
            print(
                f"{share:>6.0%} {name:>17}: found after {statistics.median(after):.0f} attempts of both at the median, "
                f"{sorted(after)[int(0.95 * len(after))]} in 95 of 100"
            )
    raise SystemExit(not met)


if __name__ == "__main__":
    main()
