"""A simulated replica's hardware: a model on GPUs, its step times and its KV cache, by the planner's own figures."""

from decimal import Decimal

import msgspec

from planner.plans.gpus import gpu_named
from planner.plans.models import KvPrecision, Precision, model_named
from planner.plans.roofline import StepTimes, step_times
from planner.plans.sizing import MEMORY_UTILISATION, memory_of
from planner.simulate.engine import EngineSpec
from planner.simulate.simulation_errors import SimulationRefused


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The hardware of one replica, with its model."""

    model: str
    gpu: str
    gpus: int
    precision: Precision
    kv_precision: KvPrecision
    efficiency: str
    usd_per_gpu_hour: Decimal
    steps: StepTimes
    engine: EngineSpec

    @property
    def usd_per_hour(self) -> Decimal:
        return self.gpus * self.usd_per_gpu_hour


def machine_of(
    *,
    model: str = "llama-3-70b",
    gpu: str = "h100",
    tp: int = 4,
    precision: Precision = "fp8",
    kv_precision: KvPrecision = "fp8",
    efficiency: str = "vllm",
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 8_192,
    kv_tokens: int | None = None,
    utilisation: float = MEMORY_UTILISATION,
    usd_per_gpu_hour: Decimal | None = None,
) -> Machine:
    """Build a machine. `kv_tokens` overrides what fits beside the weights. Raises SimulationRefused."""
    shape, card = model_named(model), gpu_named(gpu)
    price = card.usd_per_hour if usd_per_gpu_hour is None else usd_per_gpu_hour
    if shape.heads % tp:
        raise SimulationRefused(
            f"{model} has {shape.heads} heads, which cannot be divided by --tp {tp}; 1, 2, 4 and 8 can"
        )
    if price is None:
        raise SimulationRefused(f"no price is known for an hour of {card.title}; give --gpu-usd-hour")
    if kv_tokens is None:
        kv_tokens = memory_of(
            shape, card, tp=tp, precision=precision, kv_precision=kv_precision,
            utilisation=utilisation, batched_tokens=max_num_batched_tokens, sequences=max_num_seqs,
        ).kv_tokens  # fmt: skip
    if kv_tokens <= 0:
        raise SimulationRefused(f"{model} in {precision} does not fit {tp} x {card.title}; raise --tp")
    return Machine(
        model=model,
        gpu=gpu,
        gpus=tp,
        precision=precision,
        kv_precision=kv_precision,
        efficiency=efficiency,
        usd_per_gpu_hour=price,
        steps=step_times(shape, card, tp=tp, precision=precision, kv_precision=kv_precision, efficiency=efficiency),
        engine=EngineSpec(
            kv_tokens=kv_tokens, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        ),
    )
