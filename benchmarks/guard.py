"""Has a request become dearer? Processor time a request beside a bare relay's, in one run, held against what was recorded.

The ratio moves little with the machine, because both servers are measured in turn on the same core; the gateway's is that of all its
processes, the control plane included. Exit status 1 means that it is worse than the recorded one by more than a fifth in every
try. It does move with the neighbours, who take the caches from the larger of the two programs: a try beside which others used more
than a tenth of a processor can acquit, but not condemn. Neighbours of a virtual machine are not seen from within it; they make the
relay dearer, too, so neither does a try condemn whose relay cost half as much again as when the ratio was recorded. `--record` writes what was measured, and a worse figure only with a
reason, which docs/benchmarks.md then has to give.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.processes import Children, choose_cores, machine_cpu_s, own_cpu_s
from benchmarks.run import Bench, Leg, Size, start_legs
from gateway.process.open_files import allow_many_sockets

RECORD: Final = Path(__file__).with_name("guard.json")
ALLOWED: Final = 1.2
TRIES: Final = 3
BUSY_TRIES: Final = 2
BUSY_CORES: Final = 0.1
"""Use of this machine's processors by others beside a try that counts against the gateway."""
SLOWER: Final = 1.5
"""Factor by which the relay may be dearer in such a try than when it was recorded."""
_SIZE: Final = Size(
    rounds=3, load_s=1.5, latency_s=0.0, flood_s=0.0, warmup_s=0.3, streams=0, stream_tokens=0, ramp_s=0.0
)


class Recorded(msgspec.Struct, frozen=True):
    """The cost of a request, as a multiple of the relay's processor time."""

    ratio: float
    day: str
    reason: str = ""
    """The reason why it was let grow; empty where it did not."""
    relay_us: float = 0.0
    """Microseconds of processor time that the relay took a request; 0 where that was not recorded."""


class Try(msgspec.Struct, frozen=True):
    """One measurement, how many processors others used beside it, and what the relay cost in it, in microseconds a request."""

    ratio: float
    others_cores: float
    relay_us: float = 0.0

    def is_comparable(self, recorded_us: float) -> bool:
        """Return True if the try may count against the gateway, where the relay cost `recorded_us` when the ratio was recorded."""
        return self.others_cores <= BUSY_CORES and not 0.0 < recorded_us * SLOWER < self.relay_us


def main() -> int:
    """Measure, and compare or record. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", metavar="DAY", help="keep the measured ratio, as of this day")
    parser.add_argument("--reason", default="", help="why a request may cost more than was recorded")
    given = parser.parse_args()
    recorded = msgspec.json.decode(RECORD.read_bytes(), type=Recorded) if RECORD.exists() else None
    limit = None if recorded is None or given.record else recorded.ratio * ALLOWED
    try:
        tries = _tries(limit, 0.0 if recorded is None else recorded.relay_us)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    best = min(tries, key=lambda each: each.ratio)
    ratio = best.ratio
    if given.record:
        return _keep(Recorded(round(ratio, 3), given.record, given.reason, round(best.relay_us)), recorded)
    if recorded is None or limit is None:
        print(f"a request costs {ratio:.2f} times the relay's processor time; nothing is recorded yet (--record DAY)")
        return 0
    print(
        f"a request costs {ratio:.2f} times the relay's processor time; recorded on {recorded.day}: {recorded.ratio:.2f}"
    )
    return verdict(tries, limit, recorded.relay_us)


def verdict(tries: Sequence[Try], limit: float, recorded_us: float) -> int:
    """Print the verdict of the tries on the limit. Return the exit status: 1 when a request became dearer for certain."""
    if any(each.ratio <= limit for each in tries):
        return 0
    if not any(each.is_comparable(recorded_us) for each in tries):
        others = ", ".join(f"{each.others_cores:.1f}" for each in tries)
        relay = ", ".join(f"{each.relay_us:.0f}" for each in tries)
        print(
            f"that is more than {limit:.2f}, but others used {others} processors meanwhile, and the relay took {relay} µs a request "
            f"where it took {recorded_us:.0f}: not judged"
        )
        return 0
    print(f"that is more than {limit:.2f}: find what became dearer, or record it with a reason", file=sys.stderr)
    return 1


def _tries(limit: float | None, recorded_us: float) -> list[Try]:
    """Make a few tries; one that is within the limit is enough, and a busy machine is not waited for."""
    tries: list[Try] = []
    while len(tries) < TRIES and sum(not each.is_comparable(recorded_us) for each in tries) < BUSY_TRIES:
        tries.append(_try())
        if limit is not None and tries[-1].ratio <= limit:
            break
    return tries


def _try() -> Try:
    cores = choose_cores()
    allow_many_sockets()
    with tempfile.TemporaryDirectory(prefix="weighbridge-guard-") as name:
        folder = Path(name)
        children = Children(folder)
        bench = Bench(folder, cores, _SIZE)
        try:
            _, relay, gateway = start_legs(children, folder, cores, relay_only=False)
            if gateway is None:
                raise RuntimeError("the gateway did not start")
            began, everybody_s, own_s = time.monotonic(), machine_cpu_s(), own_cpu_s()
            ratio, relay_us = _measured(bench, relay, gateway)
            took_s, now_s = time.monotonic() - began, machine_cpu_s()
            others_s = 0.0 if now_s is None or everybody_s is None else now_s - everybody_s - (own_cpu_s() - own_s)
            bench.say(f"{ratio:.2f} times the relay's; others used {others_s / took_s:.2f} processors")
            return Try(ratio, max(0.0, others_s / took_s), relay_us)
        finally:
            children.stop()


def _measured(bench: Bench, relay: Leg, gateway: Leg) -> tuple[float, float]:
    """Return the gateway's cost as a multiple of the relay's, and the relay's in microseconds a request."""
    pooled = bench.throughput([relay, gateway])
    if any(each.errors for each in pooled.values()):
        raise RuntimeError(f"requests failed: {[each.problems() for each in pooled.values()]}")
    costs = {name: each.cpu_s / each.sent for name, each in pooled.items()}
    bench.say(", ".join(f"{name} {cost * 1e6:.0f} µs a request" for name, cost in costs.items()))
    return costs[gateway.name] / costs[relay.name], costs[relay.name] * 1e6


def _keep(measured: Recorded, before: Recorded | None) -> int:
    if before is not None and measured.ratio > before.ratio * ALLOWED and not measured.reason:
        print(f"{measured.ratio:.2f} is dearer than {before.ratio:.2f}: give a --reason", file=sys.stderr)
        return 1
    RECORD.write_bytes(msgspec.json.format(msgspec.json.encode(measured)) + b"\n")
    print(f"recorded: {measured.ratio:.2f} times the relay's processor time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
