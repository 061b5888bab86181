"""GPU specifications from the makers' data sheets, and hourly prices with their date. Any price can be overridden."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Final

import msgspec

from planner.plans.models import Precision
from planner.plans.plan_errors import PlanRefused


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU model. Rates are for dense matrices: data sheets that print sparse ones have been halved."""

    name: str
    title: str
    memory_bytes: int
    """Memory as it is sold, in units of 10^9 bytes; what the driver shows is a little more."""
    bandwidth: float
    """Memory bandwidth in bytes/s."""
    bf16_flops: float
    fp8_flops: float | None
    """FP8 operations/s; None without FP8 units, where FP8 weights are widened and computed in bf16, as INT4's are everywhere."""
    int8_flops: float
    fp4_flops: float | None
    """FP4 operations/s; None without FP4 units, where such weights cannot be served."""
    link: float
    """Bandwidth to its neighbours in the node in bytes/s, both directions together."""
    per_node: int
    product: str
    """Value of the node label `nvidia.com/gpu.product`, as NVIDIA's GPU feature discovery writes it."""
    usd_per_hour: Decimal | None
    price_source: str
    source: str
    as_of: str

    def flops(self, precision: Precision) -> float:
        """Return the operations/s at a precision. INT4 weights are widened to bf16 by vLLM's Marlin kernels before they
        are multiplied.
        """
        own = {"fp8": self.fp8_flops, "int8": self.int8_flops, "fp4": self.fp4_flops}.get(precision)
        return self.bf16_flops if own is None else own


_NO_PRICE: Final = "no price is known here; give --gpu-usd-hour"
_RUNPOD: Final = (
    "Runpod's list price of an always-on serverless worker, by the second, its documentation as read in November 2026"
)
_AS_OF: Final = "2026-11"


def _gpu(
    name: str,
    title: str,
    sheet: tuple[float, float, float, float | None, float, float | None, float],
    product: str,
    *,
    source: str,
    price: tuple[str, str] | None = None,
) -> Gpu:
    gigabytes, bandwidth_tb, bf16_tera, fp8_tera, int8_tera, fp4_tera, link_gb = sheet
    return Gpu(
        name=name,
        title=title,
        memory_bytes=round(gigabytes * 10**9),
        bandwidth=bandwidth_tb * 1e12,
        bf16_flops=bf16_tera * 1e12,
        fp8_flops=None if fp8_tera is None else fp8_tera * 1e12,
        int8_flops=int8_tera * 1e12,
        fp4_flops=None if fp4_tera is None else fp4_tera * 1e12,
        link=link_gb * 1e9,
        per_node=8,
        product=product,
        usd_per_hour=None if price is None else Decimal(price[0]),
        price_source=_NO_PRICE if price is None else price[1],
        source=source,
        as_of=_AS_OF,
    )


# fmt: off
GPUS: Final[Mapping[str, Gpu]] = {
    gpu.name: gpu
    for gpu in (
        _gpu("h100", "NVIDIA H100 SXM 80 GB", (80, 3.35, 989.4, 1_978.9, 1_978.9, None, 900), "NVIDIA-H100-80GB-HBM3",
            source="NVIDIA H100 data sheet, SXM (sparse rates halved)",
            price=("2.95", "median of 37 providers, AIMultiple, May 2026")),
        _gpu("h200", "NVIDIA H200 SXM 141 GB", (141, 4.8, 989.4, 1_978.9, 1_978.9, None, 900), "NVIDIA-H200",
            source="NVIDIA H200 data sheet, SXM (sparse rates halved)", price=("4.46", _RUNPOD)),
        _gpu("b200", "NVIDIA B200 SXM 180 GB", (180, 7.7, 2_250, 4_500, 4_500, 9_000, 1_800), "NVIDIA-B200",
            source="NVIDIA HGX B200 data sheet, per GPU (dense rates)", price=("6.84", _RUNPOD)),
        _gpu("a100", "NVIDIA A100 SXM 80 GB", (80, 2.039, 312, None, 624, None, 600), "NVIDIA-A100-SXM4-80GB",
            source="NVIDIA A100 data sheet, SXM (no FP8 units)", price=("2.16", _RUNPOD)),
        _gpu("a100-40gb", "NVIDIA A100 SXM 40 GB", (40, 1.555, 312, None, 624, None, 600), "NVIDIA-A100-SXM4-40GB",
            source="NVIDIA A100 data sheet, SXM (no FP8 units)"),
        _gpu("l40s", "NVIDIA L40S 48 GB", (48, 0.864, 362, 733, 733, None, 64), "NVIDIA-L40S",
            source="NVIDIA L40S data sheet (PCIe 4.0 between GPUs)", price=("1.33", _RUNPOD)),
        _gpu("l4", "NVIDIA L4 24 GB", (24, 0.3, 121, 242, 242, None, 64), "NVIDIA-L4",
            source="NVIDIA L4 data sheet (sparse rates halved; PCIe 4.0 between GPUs)", price=("0.47", _RUNPOD)),
    )
}
# fmt: on


def gpu_named(name: str) -> Gpu:
    """Return the GPU of that name. Raises PlanRefused for an unknown one."""
    if name not in GPUS:
        raise PlanRefused(f"`{name}` is not among the GPUs that are known: {', '.join(GPUS)}")
    return GPUS[name]
