"""The fit of several models on the same GPUs in turns: GPU memory for the one that is awake, main memory for those that sleep. Pure."""

import math
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from planner.plans.gpus import Gpu
from planner.plans.models import KvPrecision, ModelShape, Precision
from planner.plans.plan_errors import PlanRefused
from planner.plans.sizing import MEMORY_UTILISATION, RESERVE_BYTES, indivisible, memory_of

_PLACES: Final = 100
Level = Literal[1, 2]


class Lodger(msgspec.Struct, frozen=True, kw_only=True):
    """A model that has the GPUs in turns with others."""

    model: str
    precision: Precision
    kv_precision: KvPrecision
    weight_bytes: int
    kv_tokens: int
    """Tokens that its cache holds while it is awake."""
    longest: int
    """Tokens of the longest context that it can serve: the model's own, or what the cache holds."""
    sleep_s: float
    """Least seconds for its weights to leave the GPUs: nothing at level 2, where they are dropped."""
    wake_s: float
    """Least seconds for them to come back, from main memory or from the disk."""
    flags: tuple[str, ...]
    """Further flags of its command."""


class SharedFit(msgspec.Struct, frozen=True, kw_only=True):
    """Several models on the same GPUs, one awake at a time."""

    gpu: str
    tp: int
    level: Level
    utilisation: float
    """vLLM's `--gpu-memory-utilization` for each of them: the share left beside engines that sleep."""
    main_memory_bytes: int
    """Bytes that the weights of all of them take in main memory at the moment of a switch; 0 at level 2."""
    lodgers: tuple[Lodger, ...]


def shared_fit(
    models: Sequence[ModelShape],
    gpu: Gpu,
    *,
    tp: int = 1,
    level: Level = 1,
    precision: Precision | None = None,
    main_memory_bytes: int | None = None,
    copy_bytes_per_s: float,
    disk_bytes_per_s: float,
    reserve_bytes: int = RESERVE_BYTES,
) -> SharedFit:
    """Size the models for `tp` GPUs that they share. `copy_bytes_per_s` is of one GPU to main memory and back;
    `reserve_bytes` stays in each GPU of an engine that sleeps: its context, its communication buffers and captured
    graphs. Raises PlanRefused where one of them does not fit.
    """
    if len({model.name for model in models}) < max(2, len(models)):
        raise PlanRefused("name at least two models, each once: one alone has its GPUs for itself")
    if tp > gpu.per_node:
        raise PlanRefused(f"--tp {tp}: a node has {gpu.per_node} of {gpu.title}")
    for model in models:
        obstacle = indivisible(model, tp)
        if obstacle is not None:
            raise PlanRefused(f"--tp {tp}: {model.name}'s {obstacle}")
    taken = reserve_bytes * (len(models) - 1) / gpu.memory_bytes
    utilisation = math.floor((MEMORY_UTILISATION - taken) * _PLACES) / _PLACES
    if utilisation <= 0:
        raise PlanRefused(f"{len(models)} engines leave no memory of {gpu.title} to whoever is awake")
    weights = sum(model.weight_bytes(_precision(gpu, precision)) for model in models)
    host = weights if level == 1 else 0
    if main_memory_bytes is not None and host > main_memory_bytes:
        raise PlanRefused(
            f"the weights of all take {host / 1e9:,.1f} GB of main memory at a switch, and there are {main_memory_bytes / 1e9:,.1f} GB: "
            "share with fewer models, or with --level 2, which reads them from the disk again"
        )
    lodgers = tuple(
        _lodger(model, gpu, tp, level, _precision(gpu, precision), utilisation, copy_bytes_per_s, disk_bytes_per_s)
        for model in models
    )
    return SharedFit(
        gpu=gpu.title, tp=tp, level=level, utilisation=utilisation, main_memory_bytes=host, lodgers=lodgers
    )


def _precision(gpu: Gpu, asked: Precision | None) -> Precision:
    return asked or ("fp8" if gpu.fp8_flops is not None else "bf16")


def _lodger(
    model: ModelShape,
    gpu: Gpu,
    tp: int,
    level: Level,
    precision: Precision,
    utilisation: float,
    copy_bytes_per_s: float,
    disk_bytes_per_s: float,
) -> Lodger:
    kv_precision: KvPrecision = "fp8" if precision in ("fp8", "fp4") else "bf16"
    memory = memory_of(model, gpu, tp=tp, precision=precision, kv_precision=kv_precision, utilisation=utilisation)
    if memory.kv_tokens <= 0:
        raise PlanRefused(
            f"{model.name} does not fit beside the engines that sleep: {memory.weight_bytes / 1e9:,.1f} GB of weights, "
            f"{memory.usable_bytes / 1e9:,.1f} GB usable on {tp} {gpu.title}; more GPUs (--tp), fewer models or a narrower --precision"
        )
    copy_s = memory.weight_bytes / tp / copy_bytes_per_s
    return Lodger(
        model=model.name,
        precision=precision,
        kv_precision=kv_precision,
        weight_bytes=memory.weight_bytes,
        kv_tokens=memory.kv_tokens,
        longest=min(model.max_context, memory.kv_tokens),
        sleep_s=copy_s if level == 1 else 0.0,
        wake_s=copy_s if level == 1 else memory.weight_bytes / disk_bytes_per_s,
        flags=(
            "--enable-sleep-mode",
            "--gpu-memory-utilization",
            f"{utilisation:.2f}",
            "--max-model-len",
            str(min(model.max_context, memory.kv_tokens)),
        ),
    )
