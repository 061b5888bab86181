"""Has a request become dearer? Processor time a request beside a bare relay's, in one run, held against what was recorded.

The ratio moves little with the machine, because both servers are measured in turn on the same core; the gateway's is that of all its
processes, the control plane included. Exit status 1 means that it is worse than the recorded one by more than a fifth in every
try. `--record` writes what was measured, and a worse figure only with a reason, which docs/benchmarks.md then has to give.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.processes import Children, choose_cores
from benchmarks.run import Bench, Leg, Size, start_legs
from gateway.process.open_files import allow_many_sockets

RECORD: Final = Path(__file__).with_name("guard.json")
ALLOWED: Final = 1.2
TRIES: Final = 3
_SIZE: Final = Size(
    rounds=3, load_s=1.5, latency_s=0.0, flood_s=0.0, warmup_s=0.3, streams=0, stream_tokens=0, ramp_s=0.0
)


class Recorded(msgspec.Struct, frozen=True):
    """What a request costs, as a multiple of the relay's processor time."""

    ratio: float
    day: str
    reason: str = ""
    """Why it was let grow; empty where it did not."""


def main() -> int:
    """Measures, and compares or records. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", metavar="DAY", help="keep the measured ratio, as of this day")
    parser.add_argument("--reason", default="", help="why a request may cost more than was recorded")
    given = parser.parse_args()
    recorded = msgspec.json.decode(RECORD.read_bytes(), type=Recorded) if RECORD.exists() else None
    limit = None if recorded is None else recorded.ratio * ALLOWED
    try:
        ratio = _least(limit)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    if given.record:
        return _keep(Recorded(round(ratio, 3), given.record, given.reason), recorded)
    if recorded is None or limit is None:
        print(f"a request costs {ratio:.2f} times the relay's processor time; nothing is recorded yet (--record DAY)")
        return 0
    print(
        f"a request costs {ratio:.2f} times the relay's processor time; recorded on {recorded.day}: {recorded.ratio:.2f}"
    )
    if ratio <= limit:
        return 0
    print(f"that is more than {limit:.2f}: find what became dearer, or record it with a reason", file=sys.stderr)
    return 1


def _least(limit: float | None) -> float:
    """The least ratio of a few tries; one that is within the limit is enough."""
    found: list[float] = []
    for _ in range(TRIES):
        found.append(_ratio())
        if limit is None or found[-1] <= limit:
            break
    return min(found)


def _ratio() -> float:
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
            bench.say(f"load average {os.getloadavg()[0]:.1f}; relay and gateway are ready")
            return _ratio_of(bench, relay, gateway)
        finally:
            children.stop()


def _ratio_of(bench: Bench, relay: Leg, gateway: Leg) -> float:
    pooled = bench.throughput([relay, gateway])
    if any(each.errors for each in pooled.values()):
        raise RuntimeError(f"requests failed: {[each.problems() for each in pooled.values()]}")
    costs = {name: each.cpu_s / each.sent for name, each in pooled.items()}
    bench.say(", ".join(f"{name} {cost * 1e6:.0f} µs a request" for name, cost in costs.items()))
    return costs[gateway.name] / costs[relay.name]


def _keep(measured: Recorded, before: Recorded | None) -> int:
    if before is not None and measured.ratio > before.ratio * ALLOWED and not measured.reason:
        print(f"{measured.ratio:.2f} is dearer than {before.ratio:.2f}: give a --reason", file=sys.stderr)
        return 1
    RECORD.write_bytes(msgspec.json.format(msgspec.json.encode(measured)) + b"\n")
    print(f"recorded: {measured.ratio:.2f} times the relay's processor time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
