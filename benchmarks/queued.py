"""An engine with limited parallelism behind a gateway with a queue: what the load tests of queues have in common."""

from collections.abc import Sequence
from typing import Any, Final
from urllib.request import urlopen

import msgspec

from benchmarks import engine, open_loop
from benchmarks.arrivals import Arrival
from benchmarks.driver import COUNTER
from benchmarks.engine import Done
from benchmarks.load_test import Stage
from benchmarks.open_loop import Loaded, Plan
from benchmarks.processes import Child, Cores, free_port
from benchmarks.sites import Site, Team, model, start_site
from classifier.tokens import estimate_tokens
from proxy.parse.chat_request import MESSAGE_TOKENS, PRIMING_TOKENS

OURS: Final = "bench-ours"
PAID: Final = "bench-paid"
SIZES: Final = (20, 40, 60, 80)
"""Tokens of answers."""
TOKENS_PER_S: Final = 100.0
"""Tokens a second of each sequence."""
_PROMPT: Final = COUNTER.decode() + " Which pier does the ferry to the northern islands leave from, and when? " * 4
_NO_LIMIT: Final = {"requests_per_minute": 100_000_000, "tokens_per_minute": 100_000_000_000}
_PAID_SLOTS: Final = 2_000
EVENTS: Final = engine.EVENTS


class Capacity(msgspec.Struct, frozen=True):
    """The work that an engine does, by its slots."""

    slots: int

    @property
    def requests_per_s(self) -> float:
        return self.slots * TOKENS_PER_S / MEAN_TOKENS

    @property
    def tokens_per_s(self) -> float:
        return self.slots * TOKENS_PER_S

    @property
    def tokens_in_flight(self) -> int:
        """Return the tokens of so many requests, prompts included: nothing should wait inside the engine."""
        return round(self.slots * (PROMPT_TOKENS + MEAN_TOKENS))


MEAN_TOKENS: Final = sum(SIZES) / len(SIZES)
PROMPT_TOKENS: Final = estimate_tokens(_PROMPT) + PRIMING_TOKENS + MESSAGE_TOKENS
"""As the gateway counts them."""


def body() -> str:
    """Return a stream, with places for its number and its `max_tokens`."""
    fields = {
        "model": "auto",
        "messages": [{"role": "user", "content": _PROMPT}],
        "stream": True,
        "max_tokens": int(open_loop.TOKENS),
    }
    return msgspec.json.encode(fields).decode()


class Engine(msgspec.Struct, frozen=True):
    child: Child
    url: str

    def done(self) -> Done:
        with urlopen(self.url, timeout=5) as reply:  # noqa: S310 - our own address
            return msgspec.json.decode(reply.read(), type=Done)


def start_engine(stage: Stage, name: str, slots: int, cores: Cores) -> Engine:
    port = free_port()
    arguments = ("--slots", str(slots), "--tokens-per-s", str(TOKENS_PER_S), "--prompt-tokens", str(PROMPT_TOKENS))
    child = stage.python(name, "benchmarks.engine", "--port", str(port), *arguments, core=cores.mock)
    started = Engine(child, f"http://127.0.0.1:{port}")
    child.wait_ready(started.url)
    return started


def start_paid(stage: Stage, cores: Cores) -> Engine:
    """Start an upstream that has room for all, at a price."""
    return start_engine(stage, "paid", _PAID_SLOTS, cores)


def start_gateway(
    stage: Stage,
    name: str,
    ours: Engine,
    teams: Sequence[Team],
    cores: Cores,
    *,
    queue: dict[str, Any] | None,
    paid: Engine | None = None,
) -> Site:
    """Start a gateway of one worker. Without `queue` the engine gets whatever comes."""
    models = [model(OURS, ours.url, input_price=0.1, output_price=0.2)]
    if paid is not None:
        models.append(model(PAID, paid.url, input_price=2.5, output_price=10.0))
    sections: dict[str, Any] = {
        "providers": {"models": models, "timeouts": {"first_token_interactive_s": 30.0}},
        "limits": {"key": _NO_LIMIT},
        "cost": {"reference_target": PAID if paid is not None else OURS},
    }
    if queue is not None:
        sections["queues"] = {"ours": {"targets": [OURS], **queue}}
    return start_site(stage.children, stage.folder, name, sections, teams, core=cores.server, workers=1)


def drive(
    stage: Stage,
    name: str,
    site: Site,
    arrivals: Sequence[Arrival],
    cores: Cores,
    *,
    teams: Sequence[Team],
    seconds: float,
    timeout_ms: int | None,
    patience_s: float,
    probes: tuple[str, ...] = (),
) -> Loaded:
    """Drive one open loop of streams from all teams, whose keys are in the order of `teams`."""
    plan = Plan(
        url=site.url,
        keys=tuple(site.keys[team.team_id] for team in teams),
        body=body(),
        headers=() if timeout_ms is None else (f"x-request-timeout-ms: {timeout_ms}",),
        arrivals=tuple(arrivals),
        patience_s=patience_s,
        probes=probes,
    )
    within_s = seconds + patience_s + 30
    return stage.drive(name, "benchmarks.open_loop", plan, Loaded, within_s=within_s, core=cores.driver)
