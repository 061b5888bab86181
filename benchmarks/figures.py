"""Figures of load tests: percentiles, the machine that they were taken on, a table, and a file."""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import msgspec

_PACKAGES: Final = ("weighbridge", "fastapi", "uvicorn", "uvloop", "httptools", "aiohttp", "msgspec", "onnxruntime")


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of all do not exceed; 0 without values."""
    ordered = sorted(values)
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))]) if ordered else 0.0


def ratio(one: float, other: float) -> float | None:
    """Return a / b; None where there is nothing to compare with."""
    return one / other if other else None


def quantiles_ms(values_us: Sequence[float]) -> dict[str, float]:
    """Return the quantiles of a set of times in microseconds."""
    ordered = sorted(values_us)
    return {
        "count": len(ordered),
        "p50_ms": percentile(ordered, 0.5) / 1000,
        "p90_ms": percentile(ordered, 0.9) / 1000,
        "p99_ms": percentile(ordered, 0.99) / 1000,
        "max_ms": (ordered[-1] if ordered else 0.0) / 1000,
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    """Return facts that figures depend on. Take it before the load starts: the load average is of that moment."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "load_average_before": round(os.getloadavg()[0], 2),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _PACKAGES},
    }


def write(path: Path, report: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an aligned table: the first column to the left, the others to the right."""
    lines = [heads, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def number(value: float | None, digits: int = 2) -> str:
    """Return a figure as a table shows it."""
    return "-" if value is None else f"{value:,.{digits}f}"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.1f} %"
