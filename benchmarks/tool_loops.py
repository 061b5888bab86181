"""Tool loops under several rules of choice: solved turns, their cost, and the moves that lose a prompt cache.

    python -m benchmarks.tool_loops                  # a quarter of a minute; the same figures on any machine
    python -m benchmarks.tool_loops --turns 4000 --noise 1.2

Requests have the shape of real agents' requests, and what decides is the gateway's own: `read_loop`, `plan` and the
memory of `Affinity`. What models do is made up, by one seed, and is the same for every rule:

- A turn has stages of its own hardness. A model can do a stage or it cannot, by its ability and one draw a stage; what a
  weaker model can do a better one mostly can, too.
- A model that can do a stage does so with most of its steps, and with the others makes a mistake. One that cannot makes
  the same call again, fails in another way, finds nothing, or does something useless that looks well. Now and then it
  gives up, and after forty steps it does.
- The prediction is the truth with an error. Where each step is predicted anew, half of its variance is each step's own.
- A target has cached what it read of the conversation when it was last asked.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from classifier.prediction import Prediction, TargetPrediction
from cost.prices import Price
from cost.usage import Usage
from providers.catalog import Catalog
from providers.target import Deployment, Target
from providers.wire import Message
from proxy.plan.route_plan import Facts, Policy, plan
from proxy.plan.session_affinity import Affinity, TurnChoice
from proxy.plan.tool_loop import LoopRules, ToolLoop, read_loop

SEED: Final = 20261123
_WILLING_NANOUSD: Final = 200_000_000.0
_MAX_STEPS: Final = 40
_SYSTEM_TOKENS: Final = 3_000
"""Instructions and the definitions of tools."""
_STEP_S: Final = 8.0
_MAX_STAGES: Final = 14
_DOES: Final = 0.85
_GIVES_UP: Final = 0.03
_LUCK: Final = 0.04
_CHARS_PER_TOKEN: Final = 4

ABILITIES: Final[Mapping[str, float]] = {"small": 0.6, "middle": 1.7, "large": 3.0}
_PRICES: Final[Mapping[str, tuple[float, float, float]]] = {
    "small": (0.15, 0.015, 0.6),
    "middle": (0.8, 0.08, 3.2),
    "large": (3.0, 0.3, 15.0),
}
"""Dollars a million tokens: input, cached input, output."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule of choice."""

    name: str
    fixed: str = ""
    """The target of everything; empty where the planner chooses."""
    stays: bool = False
    max_raises: int = 0
    remembers: bool = True
    """False when each request comes to a process that has seen nothing of the conversation."""


RULES: Final = (
    Rule(name="fixed cheapest", fixed="small"),
    Rule(name="fixed best", fixed="large"),
    Rule(name="per step choice"),
    Rule(name="per turn choice", stays=True),
    Rule(name="per turn + struggle raise", stays=True, max_raises=2),
    Rule(name="the same, a new process each step", stays=True, max_raises=2, remembers=False),
)


class Task(msgspec.Struct, frozen=True):
    """One user turn."""

    number: int
    hardness: tuple[float, ...]
    """Hardness of each stage."""
    hard: float
    """Hardness of the whole turn."""
    error: float
    """Error of the prediction."""


class Totals(msgspec.Struct):
    """The sums over all turns under one rule."""

    turns: int = 0
    solved: int = 0
    steps: int = 0
    moves: int = 0
    raised: int = 0
    """Turns in which a raise led to another target."""
    needless: int = 0
    """Of those, turns whose first raise left a target that could do the stage."""
    nanousd: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0


class Conversation:
    """The state of one conversation: its messages, its size, and the part of it that each target has cached."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.messages: list[Message] = [Message(role="system", content="You are an agent.")]
        self.tokens = _SYSTEM_TOKENS
        self.cached: dict[str, int] = {}

    def add(self, message: Mapping[str, Any], chars: int) -> None:
        self.messages.append(msgspec.json.decode(msgspec.json.encode(message), type=Message))
        self.tokens += 4 + chars // _CHARS_PER_TOKEN


def _target(name: str) -> Target:
    read, cached, written = (round(usd * 1e9) for usd in _PRICES[name])
    return Target(
        target_id=name,
        provider="made-up",
        tiers=frozenset({"interactive"}),
        price=Price(
            version="made-up",
            input_nanousd=read,
            output_nanousd=written,
            cached_input_nanousd=cached,
            cache_write_nanousd=read,
        ),
        max_context_tokens=400_000,
        max_output_tokens=8_192,
        capabilities=frozenset({"tools"}),
        capability=ABILITIES[name] / 3,
        routing_weight=1.0,
        deployments=(Deployment(deployment_id=f"{name}/a", target_id=name, kind="scripted", upstream_model=name),),
    )


_CATALOG: Final = Catalog(targets={name: _target(name) for name in ABILITIES})
_FLEET: Final = {name: target.deployments for name, target in _CATALOG.targets.items()}
_POLICY: Final = Policy(reference="large")


def tasks_of(seed: int, turns: int, noise: float) -> list[list[Task]]:
    """Make conversations of one to three turns that are about as hard as each other."""
    random = Random(seed)
    found: list[list[Task]] = []
    number = 0
    while number < turns:
        level = random.gauss(-0.6, 1.0)
        conversation = []
        for _ in range(min(random.choice((1, 1, 2, 3)), turns - number)):
            hard = level + random.gauss(0, 0.4)
            stages = min(_MAX_STAGES, 2 + int(random.expovariate(1 / 4)))
            hardness = tuple(hard + random.gauss(0, 0.5) for _ in range(stages))
            conversation.append(Task(number, hardness, hard, random.gauss(0, noise)))
            number += 1
        found.append(conversation)
    return found


def prediction_of(hardness: float) -> Prediction:
    outlooks = {}
    for name, ability in ABILITIES.items():
        adequate = _logistic(2.0 * (ability - hardness) + 0.5)
        outlooks[name] = TargetPrediction(
            adequate=adequate, low=adequate, high=adequate, output_tokens=150, output_tokens_p90=600
        )
    complexity = _logistic(hardness)
    return Prediction(complexity=complexity, source="onnx", expected_output_tokens=150, outlooks=outlooks)


def _logistic(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def can_do(seed: int, task: Task, stage: int, target: str) -> bool:
    """Draw whether each target can do a stage: one draw a stage for all targets, and a small one for each."""
    shared = Random(f"{seed}/{task.number}/{stage}").gauss(0, 0.7)
    own = Random(f"{seed}/{task.number}/{stage}/{target}").gauss(0, 0.3)
    return ABILITIES[target] + shared + own > task.hardness[stage]


class _Agent:
    """The loop of one turn under one rule."""

    def __init__(self, rule: Rule, seed: int, affinity: Affinity, totals: Totals) -> None:
        self.rule = rule
        self.seed = seed
        self.affinity = affinity
        self.totals = totals

    def run(self, conversation: Conversation, task: Task, noise: float) -> None:
        text = f"Task {task.number}: mend it and show that it works. " * 8
        conversation.add({"role": "user", "content": text}, len(text))
        opening = conversation.tokens
        totals, stage, last, raised = self.totals, 0, "", False
        totals.turns += 1
        for step in range(_MAX_STEPS):
            random = Random(f"{self.seed}/{task.number}/{stage}/{step}")
            loop = read_loop(conversation.messages, LoopRules(max_raises=self.rule.max_raises))
            target, reason = self._choose(conversation, task, loop, opening, random.gauss(0, noise))
            totals.moves += bool(last) and last != target
            if reason == "struggle" and not raised and last not in {"", target}:
                raised = True
                totals.raised += 1
                totals.needless += can_do(self.seed, task, stage, last)
            able = can_do(self.seed, task, stage, target)
            last = target
            totals.steps += 1
            done = random.random() < (_DOES if able else _LUCK)
            self._act(conversation, task, (stage, step), target, random, able=able, done=done)
            stage += done
            if stage == len(task.hardness):
                totals.solved += 1
                break
            if not able and random.random() < _GIVES_UP:
                break
        self._pay(conversation, last, 120)
        conversation.add({"role": "assistant", "content": "That is how far I came."}, 480)

    def _choose(
        self, conversation: Conversation, task: Task, loop: ToolLoop, opening: int, sway: float
    ) -> tuple[str, str]:
        rule, key = self.rule, conversation.number
        if rule.fixed:
            return rule.fixed, ""
        knows = rule.remembers
        facts = Facts(
            alias="auto",
            tier="interactive",
            needs=frozenset({"tools"}),
            input_tokens=conversation.tokens,
            max_output_tokens=None,
            willing_nanousd=_WILLING_NANOUSD,
            loop=loop if rule.stays else ToolLoop(),
            opening_tokens=opening if rule.stays and loop.steps else None,
        )
        turn: TurnChoice | None = self.affinity.turn_choice("t", key, task.number) if knows and rule.stays else None
        error = task.error if rule.stays else (task.error + sway) / math.sqrt(2)
        prediction = prediction_of(task.hard + error)
        sticky = self.affinity.lookup("t", key) if knows else None
        first = plan(facts, prediction, _POLICY, _CATALOG, _FLEET, sticky, turn=turn).candidates[0]
        name = first.target.target_id
        if rule.stays:
            self.affinity.remember_turn("t", key, task.number, name, loop.raises)
        return name, first.reason

    def _act(
        self,
        conversation: Conversation,
        task: Task,
        at: tuple[int, int],
        target: str,
        random: Random,
        *,
        able: bool,
        done: bool,
    ) -> None:
        """Act one step: the call, its result, and its cost."""
        name, arguments, result = _step(random, task, at, able=able, done=done)
        self._pay(conversation, target, 60 + len(arguments) // _CHARS_PER_TOKEN)
        call_id = f"call_{task.number}_{at[1]}"
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        conversation.add({"role": "assistant", "content": None, "tool_calls": [call]}, 240 + len(arguments))
        conversation.add({"role": "tool", "tool_call_id": call_id, "content": result}, len(result))
        self.affinity.remember("t", conversation.number, target, conversation.tokens)

    def _pay(self, conversation: Conversation, target: str, output: int) -> None:
        totals, price = self.totals, _CATALOG.targets[target].price
        assert price is not None
        cached = min(conversation.cached.get(target, 0), conversation.tokens)
        usage = Usage(input_tokens=conversation.tokens, cached_input_tokens=cached, output_tokens=output)
        totals.nanousd += price.cost_nanousd(usage)
        totals.input_tokens += conversation.tokens
        totals.cached_tokens += cached
        conversation.cached[target] = conversation.tokens


def _step(random: Random, task: Task, at: tuple[int, int], *, able: bool, done: bool) -> tuple[str, str, str]:
    """Return the call and its result, as coding agents have them."""
    stage, step = at
    path = f"src/part_{task.number % 7}/file_{stage}.py"
    if done:
        return _useful(random, path, step)
    error = f"Traceback (most recent call last):\n  File \"{path}\", line {40 + stage}\nKeyError: 'stage_{stage}'"
    again = ("run_tests", _arguments(path=path), f"exit code: 1\n{error}\n1 failed in 0.{random.randint(10, 99)}s")
    if able:
        # A mistake of one that can: a slip of a path, or a test that fails before the next edit.
        slip = ("read_file", _arguments(path=f"{path}.{step}"), f"Error: no such file: {path}.{step}")
        return again if random.random() < 0.5 else slip
    kind = random.random()
    if kind < 0.4:
        return again
    if kind < 0.65:
        return "edit_file", _arguments(path=path, line=step), json_error(f"old text not found at line {step}")
    if kind < 0.8:
        return "search", _arguments(query=f"stage_{stage}_{step}"), "[]"
    return _useful(random, path, step)


def _useful(random: Random, path: str, step: int) -> tuple[str, str, str]:
    kind = random.random()
    if kind < 0.4:
        lines = "\n".join(
            f"{n:4} def part_{step}_{n}(value): return value + {n}" for n in range(random.randint(10, 120))
        )
        return "read_file", _arguments(path=path, offset=step * 100), lines
    if kind < 0.7:
        return "edit_file", _arguments(path=path, line=step, new="value = 1\n" * 12), "The file was updated."
    return "run_tests", _arguments(path=path, only=f"test_{step}"), f"exit code: 0\n{step + 3} passed in 0.4s"


def _arguments(**fields: Any) -> str:
    return msgspec.json.encode(fields).decode()


def json_error(message: str) -> str:
    return msgspec.json.encode({"error": message}).decode()


def simulate(rule: Rule, conversations: Sequence[Sequence[Task]], seed: int, noise: float) -> Totals:
    """Run all turns under one rule."""
    now = 0.0
    affinity = Affinity(lambda: now)
    totals = Totals()
    for number, tasks in enumerate(conversations):
        conversation = Conversation(number)
        for task in tasks:
            _Agent(rule, seed, affinity, totals).run(conversation, task, noise)
            now += _STEP_S * 5
    return totals


def row(rule: Rule, totals: Totals) -> str:
    usd = totals.nanousd / 1e9
    cells = (
        rule.name,
        f"{totals.solved / totals.turns:.1%}",
        f"${usd / totals.turns * 1000:.2f}",
        f"${usd / max(1, totals.solved) * 1000:.2f}",
        f"{totals.steps / totals.turns:.1f}",
        f"{totals.moves / totals.turns:.2f}",
        f"{totals.cached_tokens / totals.input_tokens:.1%}",
        f"{totals.raised / totals.turns:.1%}",
        f"{totals.needless / totals.raised:.1%}" if totals.raised else "-",
    )
    return f"| {' | '.join(cells)} |"


HEADINGS: Final = (
    "| rule | solved | 1,000 turns | 1,000 solved | steps a turn | moves a turn | input cached | raised turns | needless |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=4_000)
    parser.add_argument("--noise", type=float, default=0.6, help="the prediction's error, in units of hardness")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=Path("build/tool_loops.json"))
    asked = parser.parse_args()
    conversations = tasks_of(asked.seed, asked.turns, asked.noise)
    found: dict[str, Totals] = {}
    print(HEADINGS)
    for rule in RULES:
        found[rule.name] = simulate(rule, conversations, asked.seed, asked.noise)
        print(row(rule, found[rule.name]), flush=True)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_bytes(msgspec.json.format(msgspec.json.encode(found)))


if __name__ == "__main__":
    main()
