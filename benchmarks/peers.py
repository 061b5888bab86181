"""Ours beside LiteLLM's proxy and Portkey's gateway, and a bare relay: the same load, one core each, rounds in turn.

    make bench-peers, or: python -m benchmarks.peers [--quick] [--json build/peers.json]

Each peer is the published package in an environment of its own (`.venv-peers`, `build/portkey`), one process, with nothing on but
what takes a request to the mock upstream: LiteLLM with its master key, Portkey with none, as it keeps none. Ours has everything on,
its control plane counted in. Exit status 1 means that a reply was wrong or missing. See docs/benchmarks.md.
"""

import os
import secrets
import shutil
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from benchmarks import figures, load_test
from benchmarks.figures import ratio
from benchmarks.load_test import Stage
from benchmarks.processes import Cores, choose_cores, free_port
from benchmarks.run import Bench, Leg, Pooled, Size, start_legs
from planner.simulate.plots import figure_maker
from planner.simulate.simulation_errors import PlotsUnavailable

OURS: Final = "weighbridge"
_ENVIRONMENT: Final = Path(".venv-peers")
_PORTKEY: Final = Path("build/portkey")
_PLOT: Final = Path("build/peers.png")
_READY_S: Final = 180.0
_FULL: Final = Size(
    rounds=3, load_s=4.0, latency_s=2.0, flood_s=3.0, warmup_s=1.0, streams=0, stream_tokens=0, ramp_s=0.0
)
_QUICK: Final = msgspec.structs.replace(_FULL, rounds=1, load_s=2.0, latency_s=1.0, flood_s=1.5)


def measure(stage: Stage) -> dict[str, Any]:
    """Return the figures of each, by name."""
    cores = choose_cores()
    size = _QUICK if stage.quick else _FULL
    bench = Bench(stage.folder, cores, size)
    direct, relay, ours = start_legs(stage.children, stage.folder, cores, relay_only=False)
    if ours is None:
        raise RuntimeError("the gateway did not start")
    legs = [
        relay,
        msgspec.structs.replace(ours, name=OURS),
        _start_portkey(stage, direct.url, cores),
        _start_litellm(stage, direct.url, cores),
    ]
    bench.say("all four are ready")
    load, single = bench.throughput(legs), bench.latency([direct, *legs])
    flood = bench.flood(legs, counted=False)
    for leg in legs:
        for what, pools in (("load", load), ("latency", single), ("flood", flood)):
            stage.problems += [f"{leg.name}, {what}: {problem}" for problem in pools[leg.name].problems()]
    bare_ms = single[direct.name]
    return {
        "machine": figures.machine(),
        "versions": {"litellm": _version_of_litellm(), "portkey": _version_of_portkey()},
        "pinning": cores.describe(),
        "servers": {leg.name: _told(leg, load, single, flood, bare_ms) for leg in legs},
    }


def _told(
    leg: Leg, load: dict[str, Pooled], single: dict[str, Pooled], flood: dict[str, Pooled], bare: Pooled
) -> dict[str, float]:
    under, alone = load[leg.name], single[leg.name]
    return {
        "requests_per_s": under.per_second(),
        "p50_ms": under.latency_ms(0.5),
        "p99_ms": under.latency_ms(0.99),
        "cpu_us_a_request": under.cpu_s / max(1, under.sent) * 1e6,
        "added_p50_ms": alone.latency_ms(0.5) - bare.latency_ms(0.5),
        "added_p99_ms": alone.latency_ms(0.99) - bare.latency_ms(0.99),
        "stream_events_per_s": flood[leg.name].events_per_second(),
        "rss_mb": (leg.child.rss_bytes() if leg.child else 0) / 1e6,
    }


def _start_litellm(stage: Stage, upstream: str, cores: Cores) -> Leg:
    key, port = f"sk-{secrets.token_hex(12)}", free_port()
    model = {"model": "openai/bench", "api_base": f"{upstream}/v1", "api_key": "none"}
    config = stage.folder / "litellm.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "model_list": [{"model_name": "auto", "litellm_params": model}],
                "general_settings": {"master_key": key},
                "litellm_settings": {"drop_params": True, "num_retries": 0},
            }
        )
    )
    program = _ENVIRONMENT.absolute() / "bin" / "litellm"
    if not program.exists():
        raise RuntimeError("LiteLLM's proxy is not installed: `make bench-peers` does that")
    child = stage.children.start(
        "litellm",
        [str(program), "--config", str(config), "--port", str(port), "--host", "127.0.0.1", "--num_workers", "1"],
        core=cores.server,
        environ={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION"},
    )
    child.wait_ready(f"http://127.0.0.1:{port}/health/liveliness", within_s=_READY_S)
    return Leg("litellm", f"http://127.0.0.1:{port}", child, key)


def _start_portkey(stage: Stage, upstream: str, cores: Cores) -> Leg:
    port, node = free_port(), shutil.which("node")
    program = _PORTKEY.absolute() / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"
    if node is None or not program.exists():
        raise RuntimeError("Portkey's gateway is not installed: `make bench-peers` does that, with Node.js")
    child = stage.children.start(
        "portkey",
        [node, str(program), f"--port={port}", "--headless"],
        core=cores.server,
        environ={"NODE_ENV": "production", "TRUSTED_CUSTOM_HOSTS": "127.0.0.1"},
    )
    child.wait_ready(f"http://127.0.0.1:{port}/", within_s=_READY_S)
    told = ("x-portkey-provider: openai", f"x-portkey-custom-host: {upstream}/v1")
    return Leg("portkey", f"http://127.0.0.1:{port}", child, "none", told)


def _version_of_litellm() -> str:
    found = sorted(_ENVIRONMENT.glob("lib/python*/site-packages/litellm-*.dist-info"))
    return found[0].name.removeprefix("litellm-").removesuffix(".dist-info") if found else "?"


def _version_of_portkey() -> str:
    package = _PORTKEY / "node_modules" / "@portkey-ai" / "gateway" / "package.json"
    return str(msgspec.json.decode(package.read_bytes())["version"])


_ROWS: Final = (
    ("requests/s, 32 connections", "requests_per_s", 0),
    ("  latency p50, ms", "p50_ms", 2),
    ("  latency p99, ms", "p99_ms", 2),
    ("  processor a request, µs", "cpu_us_a_request", 0),
    ("added to the bare upstream, 1 connection, p50, ms", "added_p50_ms", 2),
    ("  p99, ms", "added_p99_ms", 2),
    ("streaming events/s, 32 streams at full speed", "stream_events_per_s", 0),
    ("memory of its processes afterwards, MB", "rss_mb", 0),
)


def show(report: dict[str, Any]) -> None:
    servers: dict[str, dict[str, float]] = report["servers"]
    versions = report["versions"]
    print(f"LiteLLM {versions['litellm']}, Portkey {versions['portkey']}; {report['pinning']}\n")
    rows = [[label, *(f"{servers[name][field]:,.{digits}f}" for name in servers)] for label, field, digits in _ROWS]
    print(figures.table(["", *servers], rows))
    ours = servers[OURS]["requests_per_s"]
    for name, aim in (("portkey", 5), ("litellm", 40)):
        times = ratio(ours, servers[name]["requests_per_s"])
        print(f"{OURS} / {name}, requests/s  {'-' if times is None else f'{times:.1f}'}  (aim: at least {aim})")
    _plot(servers)


def _plot(servers: dict[str, dict[str, float]]) -> None:
    try:
        figure_of = figure_maker()
    except PlotsUnavailable:
        return
    figure = figure_of(figsize=(9, 3), layout="constrained")
    axes = figure.subplots(1, 2)
    names = list(servers)[::-1]
    for place, (field, title) in enumerate((("requests_per_s", "requests a second"), ("p99_ms", "p99 under load, ms"))):
        bars = axes[place].barh(names, [servers[name][field] for name in names], color="#3b6ea5")
        axes[place].bar_label(bars, fmt="{:,.0f}", padding=3)
        axes[place].set(title=title, xscale="log")
        axes[place].margins(x=0.25)
    _PLOT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(_PLOT, dpi=120)
    print(f"plotted in {_PLOT}")


def main() -> int:
    os.environ.setdefault("DO_NOT_TRACK", "1")
    return load_test.run("peers", __doc__, measure, show)


if __name__ == "__main__":
    sys.exit(main())
