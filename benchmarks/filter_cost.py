"""What the guard costs where nothing is found: its parts by themselves, then a gateway with a usual policy beside one without.

Parts are the fastest of many rounds of a few calls, by the thread's processor time. The gateways are measured in turn on one core,
by the processor time of all their processes a request; what counts is the ratio.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.classifier_cost import fastest_us
from benchmarks.gateway import start_gateway
from benchmarks.processes import Children, choose_cores, free_port
from benchmarks.run import Bench, Leg, Pooled, Size, prompt
from gateway.process.open_files import allow_many_sockets
from guard.answers import Answer
from guard.guard_config import GuardSection
from guard.inspector import Guard
from guard.ruleset import Ruleset

_CHARS: Final = 4_096
_DELTA_CHARS: Final = 5
_OUT: Final = Path("build/filter.json")
_AIM_US: Final = 60
_AIM_SHARE: Final = 0.10
_POLICY: Final[Mapping[str, Any]] = {
    "rules": [
        {
            "name": "personal",
            "kind": "pii",
            "entities": ["card", "email", "iban", "phone", "us_ssn"],
            "input": "mask",
            "output": "mask",
        },
        {"name": "keys", "kind": "secret", "input": "mask", "output": "mask"},
    ]
}
_ROUNDS: Final = 12
_SIZE: Final = Size(
    rounds=1, load_s=1.5, latency_s=0.0, flood_s=1.5, warmup_s=0.3, streams=0, stream_tokens=0, ramp_s=0.0
)


def texts() -> dict[str, str]:
    """Return 4 KB of prose, of a page with names and dashes, of program text, and of what agents send."""
    page = Path("docs/policy.md").read_text().replace("`", "")
    code = Path("guard/walker.py").read_text()
    agent = json.dumps([{"path": f"src/app/part_{n}.py", "line": n, "text": f"return parts[{n}]"} for n in range(90)])
    return {
        "prose": (prompt() * 2)[:_CHARS],
        "page": page[:_CHARS],
        "code": code[:_CHARS],
        "tool results": agent[:_CHARS],
    }


def parts(rules: Ruleset, guard: Guard, *, rounds: int = 400) -> dict[str, float]:
    """Return the microseconds of each part."""
    found: dict[str, float] = {}

    def measured(call: Callable[[], object]) -> float:
        return fastest_us(call, rounds=rounds, calls=20)

    for name, text in texts().items():
        body = msgspec.json.encode({"model": "auto", "messages": [{"role": "user", "content": text}]})
        found[f"{name}: JSON read"] = measured(partial(msgspec.json.decode, body))
        found[f"{name}: patterns"] = measured(partial(rules.find, text))
        found[f"{name}: a request"] = measured(
            partial(rules.judge, "chat", body, lambda used: guard.masks(used, "team"), None)
        )
        found[f"{name}: an answer"] = measured(partial(_whole, rules, guard, text))
        deltas = [text[at : at + _DELTA_CHARS] for at in range(0, len(text), _DELTA_CHARS)]
        streamed = fastest_us(partial(_streamed, rules, guard, deltas), rounds=20, calls=1)
        found[f"{name}: a delta of a stream"] = round(streamed / len(deltas), 2)
    return found


def _answer(rules: Ruleset, guard: Guard) -> Answer:
    return Answer(rules, None, guard.masks(rules, "team"))


def _whole(rules: Ruleset, guard: Guard, text: str) -> str:
    return _answer(rules, guard).whole(text)


def _streamed(rules: Ruleset, guard: Guard, deltas: list[str]) -> None:
    voice = _answer(rules, guard).voice("text")
    for delta in deltas:
        voice.feed(delta)
    voice.finish()


def end_to_end() -> dict[str, float]:
    """Return the processor time of a request and of a stream with the guard, as a multiple of that without. Raises RuntimeError."""
    cores = choose_cores()
    allow_many_sockets()
    with tempfile.TemporaryDirectory(prefix="weighbridge-filter-") as name:
        folder = Path(name)
        children = Children(folder)
        bench = Bench(folder, cores, _SIZE)
        try:
            port = free_port()
            command = [sys.executable, "-m", "benchmarks.mock_upstream", "--port", str(port)]
            mock = children.start("mock", command, core=cores.mock)
            mock.wait_ready(f"http://127.0.0.1:{port}")
            legs: list[Leg] = []
            for kind, more in (("plain", {}), ("guarded", {"guard": dict(_POLICY)})):
                (folder / kind).mkdir()
                started = start_gateway(
                    children,
                    f"http://127.0.0.1:{port}",
                    folder / kind,
                    port=free_port(),
                    core=cores.server,
                    name=kind,
                    more=more,
                )
                legs.append(Leg(kind, started.url, started.child, started.key))
            ratios: dict[str, float] = {}
            ways: dict[str, Callable[[], dict[str, Pooled]]] = {
                "requests": lambda: bench.throughput(legs),
                "streams": lambda: bench.flood(legs, counted=False),
            }
            for what, measured in ways.items():
                rounds = [measured() for _ in range(_ROUNDS)]
                if any(each.errors for pooled in rounds for each in pooled.values()):
                    raise RuntimeError("requests failed")
                # Neighbours make a round dearer and never cheaper.
                costs = {each.name: min(one[each.name].cpu_s / one[each.name].sent for one in rounds) for each in legs}
                bench.say(", ".join(f"{each} {cost * 1e6:.0f} µs" for each, cost in costs.items()))
                ratios[what] = round(costs["guarded"] / costs["plain"], 3)
            return ratios
        finally:
            children.stop()


def main() -> int:
    """Measure, print and write. Exit status 1 means that 4 KB of prose cost more than they may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", action="store_true", help="the parts alone")
    given = parser.parse_args()
    guard = Guard(GuardSection.model_validate(_POLICY), b"k" * 32)
    found = parts(asyncio.run(guard.rules_for(None)), guard)
    for name, cost_us in found.items():
        print(f"{name:36} {cost_us:8.2f} µs")
    ratios = {} if given.parts else end_to_end()
    for what, ratio in ratios.items():
        print(f"{what} with the guard: {ratio:.3f} times the processor time of those without")
    _OUT.parent.mkdir(exist_ok=True)
    _OUT.write_bytes(msgspec.json.format(msgspec.json.encode({"parts_us": found, "ratios": ratios})) + b"\n")
    missed = found["prose: a request"] > _AIM_US or ratios.get("requests", 0.0) > 1 + _AIM_SHARE
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
