"""The gateway with everything on, beside a bare relay of the same body, in one run on one machine.

    python -m benchmarks.run [--quick] [--relay-only] [--json build/bench.json]

Rounds of relay and gateway alternate, so that what else the machine does falls on both. Exit status
1 means that a reply was wrong or missing, not that an aim was missed. See docs/benchmarks.md.
"""

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.driver import ANY_NUMBER, CHAT_PATH, COUNTER, Result
from benchmarks.figures import percentile, processor, version
from benchmarks.gateway import start_gateway
from benchmarks.mock_upstream import FRAMING_EVENTS
from benchmarks.processes import Child, Children, Cores, choose_cores, free_port, on_core
from classifier.tokens import estimate_tokens
from gateway.process.open_files import allow_many_sockets

PROMPT_TOKENS: Final = 800
MAX_SENTENCES: Final = 80
CONNECTIONS: Final = 32
FLOOD_TOKENS: Final = 200
PACE_TOKENS_PER_S: Final = 20
AIMS: Final = {"throughput_ratio": 0.8, "added_p50_ms": 0.5, "stream_errors": 0}

_SENTENCES: Final = (
    "The ferry to the northern islands leaves at seven in the morning and returns before dusk. ",
    "Explain how the harbour office should plan its timetable when the tide delays two crossings. ",
    "Last winter the company carried 41,200 passengers, which is 9 % more than in the year before. ",
    "Some of the older vessels burn twice as much fuel, yet they hold more lorries on each trip. ",
    "Consider weather, crew rest periods, maintenance windows and the contract with the post office. ",
)


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """The duration of every part."""

    rounds: int
    load_s: float
    latency_s: float
    flood_s: float
    warmup_s: float
    streams: int
    stream_tokens: int
    ramp_s: float


FULL: Final = Size(
    rounds=4, load_s=4.0, latency_s=2.0, flood_s=3.0, warmup_s=0.5, streams=2_000, stream_tokens=240, ramp_s=4.0
)
QUICK: Final = Size(
    rounds=2, load_s=1.5, latency_s=0.7, flood_s=1.2, warmup_s=0.3, streams=300, stream_tokens=60, ramp_s=1.0
)


class Leg(msgspec.Struct, frozen=True):
    """One server under test; `child` is None for the mock itself."""

    name: str
    url: str
    child: Child | None = None
    key: str | None = None
    headers: tuple[str, ...] = ()
    """Headers that it needs beside the key, each as `name: value`."""
    path: str = CHAT_PATH


class Pooled:
    """The results of one leg over all rounds."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.cpu_s = 0.0
        """Processor seconds of the server's processes, with what the loads left to do."""
        self.late_s = 0.0
        """The part of it that came after the loads: books that were still to be written."""

    def add(self, result: Result) -> None:
        self.results.append(result)

    @property
    def requests(self) -> int:
        return sum(result.requests for result in self.results)

    @property
    def sent(self) -> int:
        return sum(result.sent for result in self.results)

    @property
    def errors(self) -> int:
        return sum(result.errors for result in self.results)

    @property
    def seconds(self) -> float:
        """Return the seconds that the server worked for it: work left for later must not make a server look faster."""
        return sum(result.seconds for result in self.results) + self.late_s

    def per_second(self) -> float:
        return self.requests / self.seconds if self.seconds else 0.0

    def events_per_second(self) -> float:
        return sum(result.events for result in self.results) / self.seconds if self.seconds else 0.0

    def latency_ms(self, share: float) -> float:
        return percentile([each for result in self.results for each in result.latencies_us], share) / 1000

    def ttft_ms(self, share: float) -> float:
        return percentile([each for result in self.results for each in result.ttfts_us], share) / 1000

    def problems(self) -> list[str]:
        return [f"{kind} ({count} times)" for result in self.results for kind, count in result.error_kinds.items()]


def prompt() -> str:
    """Return a prompt of about 800 tokens that begins with a number of its own."""
    text = COUNTER.decode() + " "
    for index in range(MAX_SENTENCES):
        if estimate_tokens(text) >= PROMPT_TOKENS:
            break
        text += _SENTENCES[index % len(_SENTENCES)]
    return text


def wire_bodies() -> dict[str, tuple[str, bytes]]:
    """Return the path of each wire, and the same request on it for a whole answer. The response is not kept, as agents send it."""
    messages = [{"role": "user", "content": prompt()}]
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "chat": (CHAT_PATH, {"messages": messages, "max_tokens": 300}),
        "completions": ("/v1/completions", {"prompt": prompt(), "max_tokens": 300}),
        "messages": ("/v1/messages", {"messages": messages, "max_tokens": 300}),
        "responses": ("/v1/responses", {"input": messages, "max_output_tokens": 300, "store": False}),
    }
    return {name: (path, msgspec.json.encode({"model": "auto", **body})) for name, (path, body) in bodies.items()}


def chat_body(*, stream: bool, tokens: int | None = None, pace: int = 0) -> bytes:
    """Return the prompt as a chat; see mock_upstream for `max_tokens` and `seed`."""
    fields: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": prompt()}]}
    if stream:
        fields |= {"stream": True, "max_tokens": tokens, "seed": pace}
    return msgspec.json.encode(fields)


class Bench:
    """The loads against legs, and their results."""

    def __init__(self, folder: Path, cores: Cores, size: Size) -> None:
        self._folder = folder
        self._cores = cores
        self._size = size
        self._begun_at = time.monotonic()

    def say(self, text: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - self._begun_at:5.1f} s] {text}\n")
        sys.stderr.flush()

    def rounds(self, what: str, legs: list[Leg], body: bytes, *arguments: str) -> dict[str, Pooled]:
        """Run the legs in turn, A B A B …: each once a round."""
        pooled = {leg.name: Pooled() for leg in legs}
        for number in range(1, self._size.rounds + 1):
            for leg in legs:
                self.load(leg, pooled[leg.name], body, *arguments)
            told = ", ".join(f"{name} {each.results[-1].requests} replies" for name, each in pooled.items())
            self.say(f"{what}, round {number} of {self._size.rounds}: {told}")
        return pooled

    def load(self, leg: Leg, pooled: Pooled, body: bytes, *arguments: str) -> None:
        """Run one load, and add the processor time that the server takes until it is at rest again."""
        before_s = leg.child.cpu_s() if leg.child else 0.0
        pooled.add(self.drive(leg, body, *arguments))
        if leg.child is not None:
            loaded_s = leg.child.cpu_s()
            rested_s = leg.child.cpu_s_at_rest()
            pooled.cpu_s += rested_s - before_s
            pooled.late_s += rested_s - loaded_s

    def drive(self, leg: Leg, body: bytes, *arguments: str) -> Result:
        process = self.start_driver(leg, body, *arguments)
        out, err = process.communicate(timeout=180)
        if process.returncode != 0:
            raise RuntimeError(f"the load driver failed\n{err.decode(errors='replace')[-2000:]}")
        return msgspec.json.decode(out, type=Result)

    def start_driver(self, leg: Leg, body: bytes, *arguments: str) -> "subprocess.Popen[bytes]":
        file = self._folder / "body.json"
        file.write_bytes(body)
        command = [sys.executable, "-m", "benchmarks.driver", "--url", leg.url, "--path", leg.path]
        command += ["--body", str(file), *arguments]
        for header in leg.headers:
            command += ["--header", header]
        environ = {**os.environ, **({"BENCH_KEY": leg.key} if leg.key else {})}
        with on_core(self._cores.driver):
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ)

    def throughput(self, legs: list[Leg]) -> dict[str, Pooled]:
        size = self._size
        return self.rounds(
            f"{CONNECTIONS} connections", legs, chat_body(stream=False),
            "--connections", str(CONNECTIONS), "--seconds", str(size.load_s), "--warmup", str(size.warmup_s),
        )  # fmt: skip

    def latency(self, legs: list[Leg]) -> dict[str, Pooled]:
        size = self._size
        return self.rounds(
            "1 connection", legs, chat_body(stream=False),
            "--connections", "1", "--seconds", str(size.latency_s), "--warmup", str(size.warmup_s),
        )  # fmt: skip

    def flood(self, legs: list[Leg], *, counted: bool = True) -> dict[str, Pooled]:
        """Run streams at full speed; `counted` holds each to its number of events, which some gateways change."""
        size = self._size
        expected = FLOOD_TOKENS + FRAMING_EVENTS if counted else ANY_NUMBER
        return self.rounds(
            f"{CONNECTIONS} streams at full speed", legs, chat_body(stream=True, tokens=FLOOD_TOKENS),
            "--connections", str(CONNECTIONS), "--seconds", str(size.flood_s), "--warmup", str(size.warmup_s),
            "--expect-events", str(expected),
        )  # fmt: skip

    def wires(self, leg: Leg) -> dict[str, tuple[Pooled, Pooled]]:
        """Run each wire under load and at one connection, in turn."""
        size = self._size
        pooled: dict[str, tuple[Pooled, Pooled]] = {name: (Pooled(), Pooled()) for name in wire_bodies()}
        for number in range(1, size.rounds + 1):
            for name, (path, body) in wire_bodies().items():
                asked = msgspec.structs.replace(leg, path=path)
                for pool, connections, seconds in zip(
                    pooled[name], (CONNECTIONS, 1), (size.load_s, size.latency_s), strict=True
                ):
                    self.load(
                        asked, pool, body,
                        "--connections", str(connections), "--seconds", str(seconds), "--warmup", str(size.warmup_s),
                    )  # fmt: skip
            told = ", ".join(f"{name} {load.results[-1].requests} replies" for name, (load, _) in pooled.items())
            self.say(f"wires, round {number} of {size.rounds}: {told}")
        return pooled

    def crowd(self, leg: Leg) -> tuple[Pooled, int]:
        """Run many slow streams at once; also return the bytes of memory that each takes in the server."""
        size = self._size
        self.say(f"{size.streams} streams at {PACE_TOKENS_PER_S} tokens/s through the {leg.name}")
        before = leg.child.rss_bytes() if leg.child else 0
        cpu_before_s = leg.child.cpu_s() if leg.child else 0.0
        process = self.start_driver(
            leg, chat_body(stream=True, tokens=size.stream_tokens, pace=PACE_TOKENS_PER_S),
            "--once", "--connections", str(size.streams), "--ramp", str(size.ramp_s), "--warmup", "0", "--seconds",
            str(size.stream_tokens / PACE_TOKENS_PER_S), "--expect-events", str(size.stream_tokens + FRAMING_EVENTS),
        )  # fmt: skip
        peak = before
        while True:
            peak = max(peak, leg.child.rss_bytes() if leg.child else 0)
            try:
                out, _ = process.communicate(timeout=0.25)
                break
            except subprocess.TimeoutExpired:
                continue
        pooled = Pooled()
        pooled.add(msgspec.json.decode(out, type=Result))
        pooled.cpu_s = (leg.child.cpu_s() if leg.child else 0.0) - cpu_before_s
        return pooled, (peak - before) // size.streams


def measure(bench: Bench, size: Size, direct: Leg, relay: Leg, gateway: Leg | None) -> dict[str, Any]:
    """Measure everything, as bench.json has it."""
    servers = [relay, gateway] if gateway else [relay]
    load = bench.throughput(servers)
    single = bench.latency([direct, *servers])
    flood = bench.flood(servers)
    report: dict[str, Any] = {}
    errors: list[str] = []
    for leg in servers:
        crowd, bytes_a_stream = bench.crowd(leg)
        report[leg.name] = _leg_report(leg.name, load, single, flood, crowd, bytes_a_stream, size)
        pools = {"load": load[leg.name], "latency": single[leg.name], "flood": flood[leg.name], "crowd": crowd}
        errors += [f"{leg.name}, {what}: {problem}" for what, pool in pools.items() for problem in pool.problems()]
    report["direct"] = {"p50_ms": single["direct"].latency_ms(0.5), "p99_ms": single["direct"].latency_ms(0.99)}
    report["errors"] = errors
    if gateway:
        wires = bench.wires(gateway)
        report["wires"] = _wires_report(wires)
        errors += [
            f"{name}: {problem}" for name, pools in wires.items() for pool in pools for problem in pool.problems()
        ]
        report = _compared(report["gateway"], report["relay"]) | report
    return report


def _leg_report(
    name: str,
    load: dict[str, Pooled],
    single: dict[str, Pooled],
    flood: dict[str, Pooled],
    crowd: Pooled,
    bytes_a_stream: int,
    size: Size,
) -> dict[str, Any]:
    ideal_ms = size.stream_tokens / PACE_TOKENS_PER_S * 1000
    result = crowd.results[0]
    return {
        "requests_per_s": load[name].per_second(),
        "p50_ms": load[name].latency_ms(0.5),
        "p99_ms": load[name].latency_ms(0.99),
        "cpu_us_a_request": load[name].cpu_s / max(1, load[name].sent) * 1e6,
        "single_p50_ms": single[name].latency_ms(0.5),
        "single_p99_ms": single[name].latency_ms(0.99),
        "added_p50_ms": single[name].latency_ms(0.5) - single["direct"].latency_ms(0.5),
        "added_p99_ms": single[name].latency_ms(0.99) - single["direct"].latency_ms(0.99),
        "stream_events_per_s": flood[name].events_per_second(),
        "stream_ttft_p50_ms": flood[name].ttft_ms(0.5),
        "concurrent_streams": result.peak_streams,
        "stream_errors": crowd.errors,
        "crowd_ttft_p50_ms": crowd.ttft_ms(0.5),
        "crowd_ttft_p99_ms": crowd.ttft_ms(0.99),
        "crowd_stretch_p50": crowd.latency_ms(0.5) / ideal_ms,
        "crowd_stretch_p99": crowd.latency_ms(0.99) / ideal_ms,
        "cpu_us_an_event": crowd.cpu_s / max(1, result.events) * 1e6,
        "kib_a_stream": bytes_a_stream / 1024,
    }


def _wires_report(wires: dict[str, tuple[Pooled, Pooled]]) -> dict[str, dict[str, Any]]:
    """Report each wire's cost and duration of a request, and both as multiples of chat's."""
    report: dict[str, dict[str, Any]] = {
        name: {
            "requests_per_s": load.per_second(),
            "cpu_us_a_request": load.cpu_s / max(1, load.sent) * 1e6,
            "p50_ms": load.latency_ms(0.5),
            "single_p50_ms": single.latency_ms(0.5),
        }
        for name, (load, single) in wires.items()
    }
    for figures in report.values():
        for field in ("cpu_us_a_request", "single_p50_ms"):
            figures[f"{field}_of_chat"] = _ratio(figures[field], report["chat"][field])
    return report


def _compared(gateway: dict[str, Any], relay: dict[str, Any]) -> dict[str, Any]:
    return {
        "throughput_ratio": _ratio(gateway["requests_per_s"], relay["requests_per_s"]),
        "added_p50_ms": gateway["added_p50_ms"],
        "added_p99_ms": gateway["added_p99_ms"],
        "added_over_relay_p50_ms": gateway["single_p50_ms"] - relay["single_p50_ms"],
        "added_over_relay_p99_ms": gateway["single_p99_ms"] - relay["single_p99_ms"],
        "stream_events_ratio": _ratio(gateway["stream_events_per_s"], relay["stream_events_per_s"]),
        "concurrent_streams": gateway["concurrent_streams"],
        "stream_errors": gateway["stream_errors"],
        "kib_a_stream": gateway["kib_a_stream"],
    }


def _ratio(one: float, other: float) -> float | None:
    return one / other if other else None


_ROWS: Final = (
    ("requests_per_s", f"requests/s, {CONNECTIONS} connections", "{:,.0f}"),
    ("p50_ms", "  latency p50, ms", "{:.2f}"),
    ("p99_ms", "  latency p99, ms", "{:.2f}"),
    ("cpu_us_a_request", "  processor time a request, µs", "{:.0f}"),
    ("single_p50_ms", f"latency p50, 1 connection, {PROMPT_TOKENS}-token prompt, ms", "{:.3f}"),
    ("single_p99_ms", "  p99, ms", "{:.3f}"),
    ("added_p50_ms", "  added to the bare upstream, p50, ms", "{:.3f}"),
    ("added_p99_ms", "  added to the bare upstream, p99, ms", "{:.3f}"),
    ("stream_events_per_s", f"streaming events/s, {CONNECTIONS} streams at full speed", "{:,.0f}"),
    ("concurrent_streams", f"streams at once, {PACE_TOKENS_PER_S} tokens/s each", "{:,d}"),
    ("stream_errors", "  errors", "{:d}"),
    ("crowd_ttft_p50_ms", "  first token p50, ms", "{:.1f}"),
    ("crowd_ttft_p99_ms", "  first token p99, ms", "{:.1f}"),
    ("crowd_stretch_p50", "  duration / ideal duration, p50", "{:.2f}"),
    ("crowd_stretch_p99", "  duration / ideal duration, p99", "{:.2f}"),
    ("cpu_us_an_event", "  processor time an event, its request included, µs", "{:.0f}"),
    ("kib_a_stream", "  server memory a stream, KiB", "{:.0f}"),
)


def print_report(report: dict[str, Any]) -> None:
    legs = [name for name in ("relay", "gateway") if name in report]
    width = max(len(label) for _, label, _ in _ROWS)
    print(f"\n{'':{width}}" + "".join(f"{name:>12}" for name in legs))
    for field, label, form in _ROWS:
        print(f"{label:{width}}" + "".join(f"{form.format(report[leg][field]):>12}" for leg in legs))
    print(f"{'the bare upstream itself, 1 connection, p50, ms':{width}}{report['direct']['p50_ms']:>12.3f}")
    if "gateway" in report:
        _print_wires(report["wires"])
        _print_aims(report)
    for problem in report["errors"]:
        print(f"WRONG: {problem}")


def _print_wires(wires: dict[str, dict[str, Any]]) -> None:
    print(
        f"\n{'a wire, the same prompt, a whole answer':40}{'processor µs':>14}{'of chat':>9}{'p50 ms':>9}{'of chat':>9}"
    )
    for name, found in wires.items():
        print(
            f"{name:40}{found['cpu_us_a_request']:>14.0f}{found['cpu_us_a_request_of_chat'] or 0:>9.2f}"
            f"{found['single_p50_ms']:>9.3f}{found['single_p50_ms_of_chat'] or 0:>9.2f}"
        )
    print("(aim: none above chat by more than a tenth)")


def _print_aims(report: dict[str, Any]) -> None:
    print(
        f"\ngateway / relay, requests/s    {report['throughput_ratio'] or 0:.2f}   (aim: at least {AIMS['throughput_ratio']})"
        f"\ngateway / relay, events/s      {report['stream_events_ratio'] or 0:.2f}"
        f"\nadded p50 over upstream, ms    {report['added_p50_ms']:.3f}  (aim: under {AIMS['added_p50_ms']})"
        f"\nadded p50 over relay, ms       {report['added_over_relay_p50_ms']:.3f}"
        f"\nstreams at once, errors        {report['concurrent_streams']:,}, {report['stream_errors']}  (aim: none wrong)"
    )


def _about(cores: Cores, size: Size, seconds: float) -> dict[str, Any]:
    packages = ("weighbridge", "fastapi", "uvicorn", "uvloop", "httptools", "aiohttp", "msgspec", "onnxruntime")
    return {
        "size": "full" if size == FULL else "quick",
        "prompt_tokens": PROMPT_TOKENS,
        "streams": size.streams,
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "pinning": cores.describe(),
        },
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
        "seconds": round(seconds, 1),
    }


def run(size: Size, *, relay_only: bool) -> dict[str, Any]:
    begun_at = time.monotonic()
    cores = choose_cores()
    files = allow_many_sockets()
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as name:
        folder = Path(name)
        children = Children(folder)
        bench = Bench(folder, cores, size)
        bench.say(f"{processor()}, {os.cpu_count()} cores; {cores.describe()}; {files} open files allowed")
        try:
            legs = start_legs(children, folder, cores, relay_only=relay_only)
            bench.say("the mock upstream, the relay" + ("" if relay_only else " and the gateway") + " are ready")
            report = measure(bench, size, *legs)
        finally:
            children.stop()
    return report | _about(cores, size, time.monotonic() - begun_at)


def start_legs(children: Children, folder: Path, cores: Cores, *, relay_only: bool) -> tuple[Leg, Leg, Leg | None]:
    mock_url, relay_url = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    python = (sys.executable, "-m")
    mock = children.start(
        "mock", [*python, "benchmarks.mock_upstream", "--port", mock_url.rpartition(":")[2]], core=cores.mock
    )
    mock.wait_ready(mock_url)
    relay = children.start(
        "relay",
        [*python, "benchmarks.relay", "--port", relay_url.rpartition(":")[2], "--upstream", mock_url],
        core=cores.server,
    )
    relay.wait_ready(f"{relay_url}/healthz")
    legs = (Leg("direct", mock_url), Leg("relay", relay_url, relay))
    if relay_only:
        return (*legs, None)
    started = start_gateway(children, mock_url, folder, port=free_port(), core=cores.server)
    return (*legs, Leg("gateway", started.url, started.child, started.key))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a rough answer within 40 s")
    parser.add_argument("--relay-only", action="store_true", help="measure the bare relay alone")
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), help="where the figures are written")
    given = parser.parse_args()
    # A stop must still stop the children: it becomes an exception that passes through `finally`.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        report = run(QUICK if given.quick else FULL, relay_only=given.relay_only)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    print_report(report)
    print(f"\nwritten to {given.json}")
    return 1 if report["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
