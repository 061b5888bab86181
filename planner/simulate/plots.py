"""Plots of simulations. matplotlib is the extra `plots`, and is imported when a plot is asked for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from planner.simulate.simulation_errors import PlotsUnavailable
from planner.simulate.simulation_report import Report

_HEIGHT: Final = 3.6
_WIDTH: Final = 10.0
_DOTS: Final = 120


def draw(path: Path, reports: Sequence[Report], *, title: str) -> Path:
    """Write one PNG: first tokens, hit rates and, where replicas come and go, their number. A folder gets `fleet.png`.
    Returns the file's path.
    """
    figure_of = figure_maker()
    target = path / "fleet.png" if path.is_dir() or not path.suffix else path
    target.parent.mkdir(parents=True, exist_ok=True)
    scaled = [report for report in reports if report.scaler != "fixed"]
    rows = 2 if scaled else 1
    figure = figure_of(figsize=(_WIDTH, _HEIGHT * rows), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(rows, 2, squeeze=False)
    _bars(axes[0][0], reports)
    _hits(axes[0][1], reports)
    if scaled:
        _replicas(axes[1][0], reports)
        _queue(axes[1][1], reports)
    figure.savefig(target, dpi=_DOTS)
    return target


def figure_maker() -> Any:
    try:
        # Drawn into a file: no window system is asked for, and no state is kept.
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra, imported when needed
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, imported when needed
    except ImportError:
        raise PlotsUnavailable("pictures need matplotlib: pip install 'weighbridge[plots]'") from None

    def make(**options: Any) -> Any:
        figure = Figure(**options)
        FigureCanvasAgg(figure)
        return figure

    return make


def name_of(report: Report) -> str:
    return f"{report.policy}, {report.replicas if report.scaler == 'fixed' else report.scaler}"


def _bars(axes: Any, reports: Sequence[Report]) -> None:
    places = range(len(reports))
    for shift, (label, values) in enumerate(
        (
            ("p50", [report.ttft_s.p50 or 0.0 for report in reports]),
            ("p90", [report.ttft_s.p90 or 0.0 for report in reports]),
            ("p99", [report.ttft_s.p99 or 0.0 for report in reports]),
        )
    ):
        axes.bar([place + (shift - 1) * 0.27 for place in places], values, width=0.25, label=label)
    axes.set_yscale("log")
    axes.set_ylabel("first token, s")
    axes.axhline(reports[0].ttft_target_s, color="grey", linewidth=0.8, linestyle="--")
    _names(axes, reports)
    axes.legend()


def _hits(axes: Any, reports: Sequence[Report]) -> None:
    axes.bar(range(len(reports)), [report.prefix_hit_rate * 100 for report in reports], color="tab:green")
    axes.set_ylim(0, max(1.0, *(report.prefix_hit_rate * 110 for report in reports)))
    axes.set_ylabel("prompt tokens found in a cache, %")
    _names(axes, reports)


def _names(axes: Any, reports: Sequence[Report]) -> None:
    axes.set_xticks(range(len(reports)), [name_of(report) for report in reports], rotation=30, ha="right", fontsize=8)


def _replicas(axes: Any, reports: Sequence[Report]) -> None:
    for report in reports:
        hours = [sample.at_s / 3_600 for sample in report.samples]
        up = [sample.ready + sample.starting + sample.draining for sample in report.samples]
        axes.step(hours, up, where="post", label=name_of(report), linewidth=1)
    axes.set_ylabel("replicas that cost")
    axes.set_xlabel("hours")
    axes.legend(fontsize=8)


def _queue(axes: Any, reports: Sequence[Report]) -> None:
    for report in reports:
        hours = [sample.at_s / 3_600 for sample in report.samples]
        axes.plot(hours, [sample.waiting for sample in report.samples], label=name_of(report), linewidth=1)
    axes.set_yscale("symlog")
    axes.set_ylabel("requests that wait")
    axes.set_xlabel("hours")
