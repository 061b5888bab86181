"""Prefill and decode on replicas of their own: how many of each, what that meets, and whether it needs fewer GPUs.

vLLM's NixlConnector hands a prompt's keys and values from the replica that read it to the one that answers. Neither side then
holds the other up; but both keep the weights, and whoever stands before them has to ask twice.
"""

import json
from decimal import Decimal
from typing import Any, Final

import msgspec

from cost.shown import percent
from planner.plans.launch import SIDE_CHANNEL_PORT, Launch
from planner.plans.plan_errors import PlanRefused
from planner.plans.planning import Plan, Question, plan
from planner.plans.roofline import NETWORK
from planner.plans.sizing import Operation, Targets

CONNECTOR: Final = "NixlConnector"
_SIDE_CHANNELS: Final = {"kv_producer": "5600", "kv_consumer": "5601"}
"""Port of the connector's handshake: vLLM's own default, and another one for who stands on the same machine."""
_BUSY_LINK: Final = 0.5
"""Part of the network above which hand-overs wait for each other: an assumption."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two kinds of replicas."""

    replicas: int
    gpus: int
    rate: float
    """Requests per second that one replica carries within its targets."""
    operation: Operation
    launch: Launch


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """A pool divided into prefill and decode."""

    tp: int
    prefill: Side
    decode: Side
    gpus: int
    together_gpus: int
    """The fewest GPUs with which replicas do both, however large a replica."""
    handed_bytes: int
    """Keys and values of a mean prompt."""
    handed_s: float
    """Seconds in which they are moved, at 50 GB/s a GPU: an assumption."""
    link_use: float
    """Part of the network that a prefill replica uses."""
    ttft_p99_s: float
    tpot_p99_s: float

    @property
    def pays(self) -> bool:
        return self.gpus < self.together_gpus

    def as_json(self) -> dict[str, Any]:
        """Return plain values, with each side's whole command line."""
        plain: dict[str, Any] = msgspec.to_builtins(self, builtin_types=(Decimal,))
        for name, side in (("prefill", self.prefill), ("decode", self.decode)):
            plain[name]["launch"]["command"] = side.launch.command
        return {**plain, "pays": self.pays}

    @property
    def verdict(self) -> str:
        """The verdict on its worth, in a sentence without its end."""
        if self.pays:
            return f"{self.gpus:,} GPUs instead of {self.together_gpus:,}"
        return f"it does not pay: {self.gpus:,} GPUs, and {self.together_gpus:,} where each replica does both"

    @property
    def warnings(self) -> tuple[str, ...]:
        if self.link_use <= _BUSY_LINK:
            return ()
        return (f"a prefill replica sends {percent(self.link_use, 0)} of what its network carries, so hand-overs wait",)


def split_of(question: Question, together: Plan) -> Split:
    """Return the division with the fewest GPUs, of a replica as large as any that `together` found possible. Raises PlanRefused
    where none meets the targets, or what was asked for does not go with it.
    """
    if question.tokens_per_gpu is not None:
        raise PlanRefused("measured tokens say nothing of prefill and decode apart; leave --tokens-per-gpu out")
    if question.kv_offload_gib:
        raise PlanRefused(
            "KV offload and the hand-over are both connectors, and vLLM takes one: leave --kv-offload-gib out"
        )
    if together.pp > 1:
        raise PlanRefused("a replica of several stages is not divided by what is done")
    told: dict[int, str] = {}
    found: list[Split] = []
    for tp in sorted({each.tp for each in together.candidates if each.obstacle is None and each.pp == each.dp == 1}):
        try:
            found.append(_divided(question, together, tp))
        except PlanRefused as refused:
            told[tp] = str(refused)
    if not found:
        raise PlanRefused("prefill and decode apart: " + "; ".join(f"TP={tp}: {why}" for tp, why in told.items()))
    return min(found, key=lambda each: (each.gpus, each.tp))


def split_where_possible(question: Question, together: Plan) -> Split | None:
    """Return what `split_of` does; None where it refuses."""
    try:
        return split_of(question, together)
    except PlanRefused:
        return None


def _divided(question: Question, together: Plan, tp: int) -> Split:
    """Return the two sides with this degree of tensor parallelism. Raises PlanRefused."""
    work, targets = question.work, question.targets
    same = msgspec.structs.replace(
        question,
        tp=tp,
        pp=1,
        dp=1,
        precision=together.precision,
        kv_precision=together.kv_precision,
        max_context=together.max_context,
        comparators=(),
        # Whether guesses go with the hand-over is not known of this version.
        profile="peak",
    )
    # What answers finds the whole prompt in its cache, but for the last token.
    answering = msgspec.structs.replace(
        same,
        work=msgspec.structs.replace(work, prefix_hit_rate=1.0),
        targets=Targets(tpot_p99_s=targets.tpot_p99_s),
    )
    decode = _side(plan(answering), tp, "kv_consumer")
    per_gpu = question.model.kv_bytes_per_token_per_gpu(together.kv_precision, tp)
    handed_s = work.input_tokens * per_gpu / NETWORK
    left_s = None
    if targets.ttft_p99_s is not None:
        left_s = targets.ttft_p99_s - handed_s - decode.operation.ttft_p99_s
        if left_s <= 0:
            raise PlanRefused("handing over and waiting for a place take all of the time to the first token")
    reading = msgspec.structs.replace(
        same,
        work=msgspec.structs.replace(work, output_tokens=1),
        targets=Targets(ttft_p99_s=left_s),
    )
    prefill = _side(plan(reading), tp, "kv_producer")
    return Split(
        tp=tp,
        prefill=prefill,
        decode=decode,
        gpus=prefill.gpus + decode.gpus,
        together_gpus=min(each.gpus for each in together.candidates if each.gpus is not None),
        handed_bytes=work.input_tokens * together.memory.kv_bytes_per_token,
        handed_s=handed_s,
        link_use=prefill.operation.rate * handed_s,
        ttft_p99_s=prefill.operation.ttft_p99_s + handed_s + decode.operation.ttft_p99_s,
        tpot_p99_s=decode.operation.tpot_p99_s,
    )


def _side(found: Plan, tp: int, role: str) -> Side:
    chosen = next(each for each in found.candidates if each.tp == tp and each.pp == each.dp == 1)
    if found.operation is None:
        raise PlanRefused("a replica cannot keep up with its share")
    connector = json.dumps({"kv_connector": CONNECTOR, "kv_role": role}, separators=(",", ":"))
    return Side(
        replicas=found.replicas,
        gpus=found.gpus,
        rate=chosen.rate,
        operation=found.operation,
        launch=msgspec.structs.replace(
            found.launch,
            arguments=(*found.launch.arguments, "--kv-transfer-config", connector),
            environment={**found.launch.environment, SIDE_CHANNEL_PORT: _SIDE_CHANNELS[role]},
        ),
    )
