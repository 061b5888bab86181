"""Our balancer beside plain policies and the public `vllm-router`, in front of the same real vLLM engines.

    make bench-routers, or: python -m benchmarks.routers [--quick] [--json build/routers.json]

Two replicas of vLLM for CPUs serve a random model that is large enough for a long prompt to take its time. In each round
every contender gets the very same conversations at the same moments, starting with empty caches, and the order of the
contenders turns from round to round. How much was cached is read from the engines' own counters. It needs the
environments `.venv-vllm` and `.venv-routers`, which `make bench-routers` makes. Exit status 1 means that a reply was
wrong, not that somebody was slower. See docs/benchmarks.md.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks import figures, load_test
from benchmarks.figures import percentile
from benchmarks.load_test import Stage
from benchmarks.processes import Child, free_port
from benchmarks.sites import Team, start_site
from benchmarks.talks import Heard, Shape, play, turns
from tests.vllm.engines import MODEL, VllmReplica, moved

OURS: Final = "weighbridge, prefix"
_BLOCKS: Final = 256
"""Cache blocks of 32 tokens of a replica. All conversations together are larger than one replica's cache, smaller than
both.
"""
_SEATS: Final = 8
_TEAM: Final = "team_bench"
_TARGET: Final = "llama-3-70b"
_SETTLE_S: Final = 2.0
_HITS: Final = "vllm:prefix_cache_hits_total"
_QUERIES: Final = "vllm:prefix_cache_queries_total"


class Front(msgspec.Struct, frozen=True):
    """A contender that runs."""

    url: str
    key: str
    model: str
    child: Child


Start = Callable[[Stage, str, Sequence[VllmReplica]], Front]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One contender in one round."""

    contender: str
    round: int
    hit_rate: float
    queries: float
    ttft_mean_ms: float
    ttft_p50_ms: float
    ttft_p90_ms: float
    ttft_p99_ms: float
    failed: int
    share_a: float
    """The part of prompt tokens that the first replica got; half is even."""


def _weighbridge(policy: str) -> Start:
    def start(stage: Stage, name: str, engines: Sequence[VllmReplica]) -> Front:
        pool = {
            "name": "own",
            "targets": [_TARGET],
            "upstream_model": MODEL,
            "replicas": [{"name": each.name, "url": each.url} for each in engines],
            "balance": {"policy": policy},
        }
        model = {
            "model_id": _TARGET,
            "provider": "self-hosted",
            "prices": {"input": 0.4, "output": 0.4, "cached_input": 0.4},
            "max_context_tokens": 4_096,
            "capability": 1.0,
        }
        sections: Mapping[str, Any] = {
            "providers": {"models": [model]},
            "selfhosted": {"pools": [pool]},
            "classifier": {"enabled": False},
        }
        site = start_site(stage.children, stage.folder, name, sections, [Team(_TEAM)], workers=1)
        return Front(site.url, site.keys[_TEAM], _TARGET, site.child)

    return start


def _vllm_router(policy: str) -> Start:
    def start(stage: Stage, name: str, engines: Sequence[VllmReplica]) -> Front:
        port = free_port()
        # fmt: off
        command = [
            _needed("WB_ROUTER", ".venv-routers/bin/vllm-router"), "--host", "127.0.0.1", "--port", str(port),
            "--policy", policy, "--worker-urls", *(each.url for each in engines),
            "--prometheus-port", str(free_port()), "--worker-startup-check-interval", "1",
        ]
        # fmt: on
        child = stage.children.start(name, command, core=None)
        url = f"http://127.0.0.1:{port}"
        child.wait_ready(f"{url}/health")
        return Front(url, "none", MODEL, child)

    return start


CONTENDERS: Final[Mapping[str, Start]] = {
    OURS: _weighbridge("prefix"),
    "weighbridge, round robin": _weighbridge("round-robin"),
    "weighbridge, least loaded": _weighbridge("least-loaded"),
    "vllm-router, cache_aware": _vllm_router("cache_aware"),
    "vllm-router, round_robin": _vllm_router("round_robin"),
}


def _needed(variable: str, otherwise: str) -> str:
    path = os.environ.get(variable, otherwise)
    if not Path(path).exists():
        raise RuntimeError(f"{path} is missing: run `make bench-routers`, which makes it")
    return path


def measure(stage: Stage) -> dict[str, Any]:
    rounds, shape = (1, Shape(conversations=10, turns=4, seconds=20.0)) if stage.quick else (4, Shape())
    engines = _engines(stage)
    try:
        runs: list[Run] = []
        names = list(CONTENDERS)
        for number in range(rounds):
            # Who goes first has a fresh machine, who goes last a warm one: each is each in turn.
            turned = names[number % len(names) :] + names[: number % len(names)]
            for name in turned if number % 2 == 0 else reversed(turned):
                runs.append(_run(stage, name, number, shape, engines))
                _tell(stage, runs[-1])
    finally:
        for engine in engines:
            engine.kill()
    return {
        "shape": msgspec.to_builtins(shape),
        "runs": [msgspec.to_builtins(run) for run in runs],
        "beside_ours": {name: beside(runs, name) for name in names},
    }


def _engines(stage: Stage) -> list[VllmReplica]:
    python = str(Path(_needed("WB_VLLM_PYTHON", ".venv-vllm/bin/python")).absolute())
    made = Path(_needed("WB_VLLM_WIDE_MODEL", "build/wide-llama")).absolute()
    engines = [
        VllmReplica(name, python=python, made=made, folder=stage.folder, blocks=_BLOCKS, seats=_SEATS) for name in "ab"
    ]
    for engine in engines:
        stage.say(f"starting vLLM {engine.name}")
        try:
            engine.start()
        except BaseException:
            for each in engines:
                each.kill()
            raise
    return engines


def _run(stage: Stage, name: str, number: int, shape: Shape, engines: Sequence[VllmReplica]) -> Run:
    front = CONTENDERS[name](stage, f"{name.replace(', ', '-').replace(' ', '-')}-{number}", engines)
    try:
        # Connections and first-time costs are nobody's merit; their text is in no conversation.
        asyncio.run(
            play(turns(Shape(conversations=4, turns=1, seconds=1.0), 10_000), front.url, front.key, front.model)
        )
        for engine in engines:
            engine.empty_cache()
        time.sleep(_SETTLE_S)
        before = [engine.samples() for engine in engines]
        heard = asyncio.run(play(turns(shape, number), front.url, front.key, front.model))
        after = [engine.samples() for engine in engines]
    finally:
        front.child.stop()
    stage.problems += sorted({f"{name}: {each.trouble}" for each in heard if each.trouble})
    return _summed(name, number, heard, before, after)


def _summed(
    name: str,
    number: int,
    heard: Sequence[Heard],
    before: Sequence[Mapping[str, float]],
    after: Sequence[Mapping[str, float]],
) -> Run:
    queries = [moved(*each, _QUERIES) for each in zip(before, after, strict=True)]
    hits = sum(moved(*each, _HITS) for each in zip(before, after, strict=True))
    first_ms = [each.ttft_s * 1_000 for each in heard if each.ttft_s is not None]
    return Run(
        contender=name,
        round=number,
        hit_rate=hits / max(1.0, sum(queries)),
        queries=sum(queries),
        ttft_mean_ms=sum(first_ms) / max(1, len(first_ms)),
        ttft_p50_ms=percentile(first_ms, 0.5),
        ttft_p90_ms=percentile(first_ms, 0.9),
        ttft_p99_ms=percentile(first_ms, 0.99),
        failed=sum(each.ttft_s is None for each in heard),
        share_a=queries[0] / max(1.0, sum(queries)),
    )


def _tell(stage: Stage, run: Run) -> None:
    stage.say(
        f"round {run.round}, {run.contender}: {run.hit_rate:.1%} cached, first token {run.ttft_mean_ms:.0f} ms on average"
    )


class Ratios(msgspec.Struct, frozen=True):
    """The ratios of one contender's figure to ours in the same round: the middle one, the least and the most."""

    middle: float
    least: float
    most: float


def ratios(theirs: Sequence[float], ours: Sequence[float]) -> Ratios:
    found = sorted(one / other for one, other in zip(theirs, ours, strict=True) if other)
    return Ratios(percentile(found, 0.5), found[0], found[-1]) if found else Ratios(0.0, 0.0, 0.0)


def beside(runs: Sequence[Run], name: str) -> dict[str, Any]:
    """Return a contender's figures over ours, round by round."""
    ours = sorted((run for run in runs if run.contender == OURS), key=lambda run: run.round)
    theirs = sorted((run for run in runs if run.contender == name), key=lambda run: run.round)
    kinds = ("hit_rate", "ttft_mean_ms", "ttft_p50_ms", "ttft_p90_ms")
    return {
        kind: msgspec.to_builtins(ratios([getattr(run, kind) for run in theirs], [getattr(run, kind) for run in ours]))
        for kind in kinds
    }


def show(report: dict[str, Any]) -> None:
    runs = [msgspec.convert(run, Run) for run in report["runs"]]
    rows = []
    for name, compared in report["beside_ours"].items():
        mine = [run for run in runs if run.contender == name]
        hits = sum(run.hit_rate for run in mine) / len(mine)
        rows.append(
            [
                name,
                f"{hits:.1%}",
                *(f"{sum(getattr(run, kind) for run in mine) / len(mine):.0f}" for kind in _SHOWN),
                *(_spread(compared[kind]) for kind in ("ttft_mean_ms", "ttft_p90_ms")),
                str(sum(run.failed for run in mine)),
            ]
        )
    heads = ["", "cached", "TTFT mean ms", "p50 ms", "p90 ms", "mean, of ours", "p90, of ours", "failed"]
    print(figures.table(heads, rows))


_SHOWN: Final = ("ttft_mean_ms", "ttft_p50_ms", "ttft_p90_ms")


def _spread(found: Mapping[str, float]) -> str:
    return f"{found['middle']:.2f} ({found['least']:.2f} to {found['most']:.2f})"


if __name__ == "__main__":
    sys.exit(load_test.run("routers", __doc__, measure, show))
