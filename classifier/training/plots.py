"""The report's figures. Nothing here touches pyplot or a screen.

Colours are Okabe and Ito's, which colour-blind people can tell apart; lines differ in their dashes as well.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from classifier.frontier import random_mix
from classifier.training.evaluate import FEWEST_ROWS, PRICES, AllTargets, Evaluation, Judged, Target, Timing
from classifier.training.splits import OWN

BLACK: Final = "#000000"
GREY: Final = "#767676"
BLUE: Final = "#0072B2"
ORANGE: Final = "#D55E00"
GREEN: Final = "#009E73"
STYLES: Final = {
    "shipped": (BLACK, "-"),
    "10-fold": (BLUE, "--"),
    "leave-category-out": (ORANGE, "-."),
    "leave-source-out": (GREEN, ":"),
}
MARKS: Final = ("o", "s", "D", "^", "v", "P")
MAIN: Final = tuple(STYLES)
COLUMNS: Final = 3
LENGTH_BINS: Final = 12


class Plot(msgspec.Struct, frozen=True):
    """One figure with its title and a description."""

    name: str
    title: str
    told: str
    """A description of the figure, for those who cannot see it and those who do not know where to look."""
    figure: Figure


def plots(found: Evaluation) -> Iterator[Plot]:
    """Yield the figures for which there are numbers."""
    main = [each for each in found.judged if each.row.split in STYLES]
    if main:
        yield _pairs(main)
    if found.many:
        yield _many(found.many)
        yield _promises(found.many)
    if found.targets:
        yield _reliability(found.targets)
    own = [each for each in found.judged if each.row.split in OWN]
    if own:
        yield _learning(own)
    if found.timing is not None:
        yield _latency(found.timing)


def _grid(count: int, *, height: float = 3.3) -> tuple[Figure, list[Axes]]:
    columns = min(COLUMNS, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(4.0 * columns + 0.4, height * rows + 0.7), layout="constrained")
    axes = [figure.add_subplot(rows, columns, at + 1) for at in range(count)]
    for each in axes:
        each.grid(visible=True, color="#dddddd", linewidth=0.6)
        each.set_axisbelow(True)
        for side in ("top", "right"):
            each.spines[side].set_visible(False)
    return figure, axes


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """Draw one legend below all axes, each label once."""
    known: dict[str, Artist] = {}
    for each in axes:
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            known.setdefault(str(label), handle)
    # Labels of some 25 letters: more columns than these would be cut off at the figure's sides.
    columns = max(1, int(figure.get_size_inches()[0] // 2.2))
    figure.legend(
        list(known.values()), list(known), loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )


def short(model: str) -> str:
    """Return a model's name without its date and without parts that many names have."""
    parts = [part for part in model.split("-") if not (part.isdigit() and len(part) != 1)]
    return "-".join(part for part in parts if part not in {"instruct", "v0.1", "preview"}) or model


def _pair_title(each: Judged) -> str:
    return f"{each.pair.source}\n{short(each.pair.weak)} / {short(each.pair.strong)}"


def _by_pair(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    found: dict[str, list[Judged]] = {}
    for each in judged:
        found.setdefault(each.pair.name, []).append(each)
    return found


def _pairs(judged: Sequence[Judged]) -> Plot:
    by_pair = _by_pair(judged)
    figure, axes = _grid(len(by_pair))
    for ax, rows in zip(axes, by_pair.values(), strict=True):
        ax.plot([0, 100], [0, 1], color=GREY, linewidth=1, label="random")
        for each in rows:
            colour, dashes = STYLES[each.row.split]
            ax.plot(100 * each.calls, each.won, color=colour, linestyle=dashes, linewidth=1.7, label=each.row.split)
        ax.set_title(_pair_title(rows[0]), fontsize=9)
        ax.set_ylim(min(-0.05, *(float(each.won.min()) for each in rows)), max(1.1, *(each.won.max() for each in rows)))
        ax.set_xlabel("calls to the strong model (%)", fontsize=9)
        ax.set_ylabel("lead won (PGR)", fontsize=9)
    _legend(figure, axes)
    told = (
        "Share of the strong model's lead that is won when so many of the prompts go to it. "
        "A line above the grey one is better than chance; above 1 it beats the strong model itself."
    )
    return Plot("pairs", "What routing wins, pair by pair", told, figure)


def _many(many: Sequence[AllTargets]) -> Plot:
    figure, axes = _grid(len(many), height=4.0)
    for ax, each in zip(axes, many, strict=True):
        found = each.found
        grid = np.linspace(found.single_cost.min(), found.single_cost.max(), 200)
        mix = random_mix(found.single_cost, found.single_quality, grid)
        # Nano-dollars a prompt are micro-dollars a thousand prompts.
        ax.plot(grid / 1e6, mix, color=GREY, linewidth=1.2, linestyle="--", label="drawn at random")
        ax.plot(found.cost / 1e6, found.quality, color=BLUE, linewidth=1.8, label="routed")
        spent = [one.cost / 1e6 for one in each.promises]
        ax.plot(
            spent,
            [one.quality for one in each.promises],
            "|",
            color=BLUE,
            markersize=12,
            label="minimums of 90 to 100 %",
        )
        ax.axhline(found.oracle, color=ORANGE, linewidth=1, linestyle=":", label="oracle")
        for name, mark, cost, quality in zip(
            found.targets, MARKS, found.single_cost, found.single_quality, strict=False
        ):
            ax.plot(cost / 1e6, quality, mark, color=BLACK, markersize=7, label=f"{short(name)} alone")
        ax.set_title(f"{each.split} (n = {found.n})", fontsize=10)
        ax.set_xlabel("US$ per 1,000 prompts", fontsize=9)
        ax.set_ylabel("mean score", fontsize=9)
    _legend(figure, axes)
    dates = "; ".join(f"{short(name)} since {PRICES[name].since}" for name in many[0].found.targets)
    told = f"{len(many[0].found.targets)} targets at once at real prices ({dates}). Left is cheaper, up is better."
    return Plot("targets", "Cost and quality over several targets", told, figure)


def _promises(many: Sequence[AllTargets]) -> Plot:
    figure, axes = _grid(len(many), height=3.8)
    # Each has an axis on its right too, which would touch the next one's.
    figure.set_layout_engine("constrained", wspace=0.08)
    for ax, each in zip(axes, many, strict=True):
        floors = np.array([100 * promise.floor for promise in each.promises])
        kept = np.array([100 * promise.kept for promise in each.promises])
        ends = np.array([[100 * promise.low, 100 * promise.high] for promise in each.promises]).T
        ax.plot(floors, floors, color=GREY, linewidth=1, label="as much as was asked for")
        ax.errorbar(floors, kept, abs(ends - kept), color=BLUE, marker="o", capsize=3, label="kept (95 % interval)")
        saved = ax.twinx()
        saved.plot(floors, [100 * promise.saving for promise in each.promises], color=ORANGE, linestyle="--")
        saved.set_ylabel("saved against the reference (%)", color=ORANGE, fontsize=9)
        ax.plot([], [], color=ORANGE, linestyle="--", label="saved")
        ax.set_title(each.split, fontsize=10)
        ax.set_xlabel("quality floor that was asked for (%)", fontsize=9)
        ax.set_ylabel("quality kept (% of the reference)", fontsize=9)
    _legend(figure, axes)
    told = "A point below the grey line is a floor that was promised from the probabilities alone and not kept."
    return Plot("promises", "Floors promised and kept", told, figure)


def _reliability(targets: Sequence[Target]) -> Plot:
    splits = [split for split in MAIN if any(each.split == split for each in targets)]
    chosen = [each for each in targets if each.split == splits[0]] if splits else list(targets)
    figure, axes = _grid(len(chosen))
    for ax, each in zip(axes, chosen, strict=True):
        ax.plot([0, 1], [0, 1], color=GREY, linewidth=1, label="what is said is true")
        bins = each.found.bins
        said, true = np.array([b.said for b in bins]), np.array([b.true for b in bins])
        ends = np.array([[b.true - b.low, b.high - b.true] for b in bins]).T
        ax.errorbar(
            said, true, np.maximum(ends, 0), color=BLUE, marker="o", markersize=4, capsize=2, linewidth=1.3
        ).set_label("found (95 % interval)")
        numbers = f"ECE {each.found.ece:.3f}, Brier {each.found.brier:.3f}"
        ax.set_title(f"{short(each.model)} (n = {each.found.n})", fontsize=9)
        ax.text(0.98, 0.03, numbers, ha="right", va="bottom", fontsize=8, transform=ax.transAxes)
        ax.set(xlim=(0, 1), ylim=(0, 1))
        ax.set_xlabel("P(adequate) said", fontsize=9)
        ax.set_ylabel("mean score found", fontsize=9)
    _legend(figure, axes)
    told = f"Ten bins of equal size for each target, split {chosen[0].split}; on the grey line a probability is true."
    return Plot("reliability", "Are the probabilities true?", told, figure)


def _learning(judged: Sequence[Judged]) -> Plot:
    by_pair = _by_pair(judged)
    figure, axes = _grid(len(by_pair))
    places: dict[str, int] = {split: at for at, split in enumerate(OWN)}
    for ax, rows in zip(axes, by_pair.values(), strict=True):
        at = [places[each.row.split] for each in rows]
        value = np.array([each.row.apgr for each in rows])
        ends = np.array([[each.row.apgr - each.row.lo, each.row.hi - each.row.apgr] for each in rows]).T
        ax.axhline(0.5, color=GREY, linewidth=1, label="random")
        ax.errorbar(at, value, np.maximum(ends, 0), color=BLUE, marker="o", capsize=3, label="ours (95 % interval)")
        if rows[0].pair.baseline is not None:
            ax.axhline(
                rows[0].pair.baseline, color=ORANGE, linestyle="--", linewidth=1.2, label="TF-IDF baseline, ten folds"
            )
        ax.set_xticks(list(places.values()), [str(labels) for labels in OWN.values()])
        ax.set_xlim(-0.3, len(places) - 0.7)
        ax.set_title(_pair_title(rows[0]), fontsize=9)
        ax.set_xlabel("labels of own traffic", fontsize=9)
        ax.set_ylabel("APGR", fontsize=9)
    _legend(figure, axes)
    told = (
        "Taught on the other sources and on so many labels of the pair's own; judged on the same other half of the "
        "source each time. Where a point is missing, the source has not so many prompts."
    )
    return Plot("learning", "How many labels of own traffic it takes", told, figure)


def _latency(timing: Timing) -> Plot:
    figure, (spread, lengths) = _grid(2, height=3.8)
    known = ~np.isnan(timing.spent)
    times, sizes = timing.spent[known], timing.characters[known]
    spread.plot(np.sort(times), 100 * (np.arange(len(times)) + 1) / len(times), color=BLUE)
    edges = np.unique(np.quantile(sizes, np.linspace(0, 1, LENGTH_BINS + 1)))
    bins = np.clip(np.searchsorted(edges, sizes, side="right") - 1, 0, max(0, len(edges) - 2))
    filled = [at for at in range(len(edges)) if np.count_nonzero(bins == at) >= min(10, FEWEST_ROWS)]
    middle = [float(np.median(sizes[bins == at])) for at in filled]
    for share, mark, word in ((50, "o", "median"), (99, "^", "99th percentile")):
        y = [float(np.percentile(times[bins == at], share)) for at in filled]
        lengths.plot(middle, y, color=BLUE, marker=mark, markersize=5, label=word)
    spread.set_xscale("log")
    spread.set_xlabel("milliseconds (log scale)", fontsize=9)
    spread.set_ylabel("prompts done (%)", fontsize=9)
    lengths.set(xscale="log", yscale="log")
    lengths.set_xlabel("prompt length (characters, log scale)", fontsize=9)
    lengths.set_ylabel("milliseconds (log scale)", fontsize=9)
    lengths.legend(frameon=False, fontsize=8)
    told = "One prompt after the other, on the machine that ran this evaluation, whatever else it was doing."
    return Plot("latency", "How long weighing takes", told, figure)
