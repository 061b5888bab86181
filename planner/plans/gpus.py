"""GPU specifications from the makers' data sheets, and hourly prices with their date: the table of `data/gpus.toml`. Any price can be
overridden.
"""

import tomllib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import msgspec

from planner.plans.models import Precision
from planner.plans.plan_errors import PlanRefused

NVIDIA: Final = "nvidia.com/gpu"


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU model. Rates are for dense matrices: data sheets that print sparse ones have been halved."""

    name: str
    title: str
    memory_bytes: int
    """Memory that the driver leaves to programs, which is less than what is sold."""
    bandwidth: float
    """Memory bandwidth in bytes/s."""
    bf16_flops: float
    fp8_flops: float | None
    """FP8 operations/s; None without FP8 units, where FP8 weights are widened and computed in bf16, as INT4's are everywhere."""
    int8_flops: float
    fp4_flops: float | None
    """FP4 operations/s; None without FP4 units, where FP4 weights are widened too."""
    link: float
    """Bandwidth to its neighbours in the node in bytes/s, both directions together."""
    per_node: int
    product: str
    """Value of the node label `nvidia.com/gpu.product`, as NVIDIA's GPU feature discovery writes it, or of AMD's."""
    device: str
    """Name of the device in Kubernetes."""
    usd_per_hour: Decimal | None
    price_source: str
    source: str
    as_of: str

    def flops(self, precision: Precision) -> float:
        """Return the operations/s at a precision. INT4 weights are widened to bf16 by vLLM's Marlin kernels before they
        are multiplied, and so is what the GPU has no units for.
        """
        own = {"fp8": self.fp8_flops, "int8": self.int8_flops, "fp4": self.fp4_flops}.get(precision)
        return self.bf16_flops if own is None else own


class _Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    title: str
    gib: float
    bandwidth_tb: float
    bf16: float
    int8: float
    link_gb: float
    per_node: int
    product: str
    source: str
    as_of: str
    fp8: float | None = None
    fp4: float | None = None
    device: str = NVIDIA
    price: str | None = None
    price_source: str = "no price is known here; give --gpu-usd-hour"


def _gpu(name: str, row: _Row) -> Gpu:
    return Gpu(
        name=name,
        title=row.title,
        memory_bytes=round(row.gib * 2**30),
        bandwidth=row.bandwidth_tb * 1e12,
        bf16_flops=row.bf16 * 1e12,
        fp8_flops=None if row.fp8 is None else row.fp8 * 1e12,
        int8_flops=row.int8 * 1e12,
        fp4_flops=None if row.fp4 is None else row.fp4 * 1e12,
        link=row.link_gb * 1e9,
        per_node=row.per_node,
        product=row.product,
        device=row.device,
        usd_per_hour=None if row.price is None else Decimal(row.price),
        price_source=row.price_source,
        source=row.source,
        as_of=row.as_of,
    )


def _read() -> Mapping[str, Gpu]:
    text = Path(__file__).with_name("data").joinpath("gpus.toml").read_text(encoding="utf-8")
    table: dict[str, Any] = tomllib.loads(text)
    return {name: _gpu(name, msgspec.convert(row, _Row)) for name, row in table.items()}


GPUS: Final[Mapping[str, Gpu]] = _read()


def gpu_named(name: str) -> Gpu:
    """Return the GPU of that name. Raises PlanRefused for an unknown one."""
    if name not in GPUS:
        raise PlanRefused(f"`{name}` is not among the GPUs that are known: {', '.join(GPUS)}")
    return GPUS[name]
