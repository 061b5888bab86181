"""A plot of the bills, and of what the scalers ordered beside what came. matplotlib is the extra `plots`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from planner.savings.bills import FleetBill, best_fixed
from planner.simulate.plots import figure_maker

_NANO: Final = 1e9
_DOTS: Final = 120


def draw(path: Path, bills: Sequence[FleetBill], routed_nanousd: int, *, title: str) -> Path:
    """Write one PNG. A folder gets `savings.png`. Returns the file's path."""
    target = path / "savings.png" if path.is_dir() or not path.suffix else path
    target.parent.mkdir(parents=True, exist_ok=True)
    judged = [bill for bill in bills if bill.lateness is not None]
    figure = figure_maker()(figsize=(10.0, 10.8 if judged else 7.2), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(3 if judged else 2, 1)
    _bars(axes[0], bills, routed_nanousd)
    _course(axes[1], bills)
    if judged:
        _lateness(axes[2], judged)
    figure.savefig(target, dpi=_DOTS)
    return target


def _bars(axes: Any, bills: Sequence[FleetBill], routed_nanousd: int) -> None:
    gpu = [0.0, *(bill.gpu_nanousd / _NANO for bill in bills)]
    elsewhere = [routed_nanousd / _NANO, *(bill.elsewhere_nanousd / _NANO for bill in bills)]
    names = ["commercial only", *(bill.name for bill in bills)]
    axes.bar(range(len(names)), elsewhere, label="elsewhere")
    axes.bar(range(len(names)), gpu, bottom=elsewhere, label="GPUs")
    axes.set_ylabel("dollars")
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
    axes.legend()


def _course(axes: Any, bills: Sequence[FleetBill]) -> None:
    best = best_fixed(bills)
    shown = [bill for bill in bills if bill.outcome is not None and (bill.fixed is None or bill is best)]
    for index, bill in enumerate(shown):
        samples = [] if bill.outcome is None else bill.outcome.samples
        hours = [at_s / 3_600 for at_s, _, _ in samples]
        if index == 0:
            axes.fill_between(hours, [work for _, _, work in samples], color="lightgrey", label="work that came")
        axes.step(hours, [up for _, up, _ in samples], where="post", label=bill.name, linewidth=1)
    axes.set_ylabel("replicas")
    axes.set_xlabel("hours")
    axes.legend(fontsize=8)


def _lateness(axes: Any, bills: Sequence[FleetBill]) -> None:
    found = [bill.lateness for bill in bills if bill.lateness is not None]
    for shift, label, shares in (
        (-0.2, "late", [each.late for each in found]),
        (0.2, "overflowed", [each.overflow for each in found]),
    ):
        axes.bar(
            [place + shift for place in range(len(shares))],
            [each.share * 100 for each in shares],
            width=0.38,
            yerr=[(each.high - each.low) * 50 for each in shares],
            capsize=2,
            label=label,
        )
    axes.set_ylim(bottom=0)
    axes.set_ylabel("of the pool's requests, %")
    axes.set_xticks(range(len(bills)), [bill.name for bill in bills], rotation=30, ha="right", fontsize=8)
    axes.legend(fontsize=8)
