"""Charts of how a pool was scaled: the forecast beside what came, and the replicas wanted beside those ready."""

from collections.abc import Sequence
from typing import Final

from dashboards.ui import formats
from dashboards.ui.charts import Chart, Series
from selfhosted.scale.history import Step

_US: Final = 1_000_000


def scaling_charts(steps: Sequence[Step]) -> list[Chart]:
    """Return both charts of a pool's last day; none before its first step is over."""
    if not steps:
        return []
    x = [round(step.at_s * _US) for step in steps]
    last = steps[-1]
    expected = "nothing was expected" if last.expected is None else f"{formats.short(last.expected)} were expected"
    demand = Chart(
        shape="line",
        title="Work expected and come",
        caption="Tokens a second in the busiest minute of each five, and what was expected of it one cold start before; last "
        f"{formats.short(last.came)} came where {expected}.{_score(steps)}",
        x=x,
        x_label="Time (UTC)",
        by_hour=True,
        unit="tokens",
        series=[
            Series("Expected", [step.expected for step in steps], "quiet"),
            Series("Came", [step.came for step in steps], "accent"),
        ],
    )
    replicas = Chart(
        shape="line",
        title="Replicas ordered and ready",
        caption=f"Last {formats.number(last.desired)} ordered, {formats.number(last.ready)} ready.",
        x=x,
        x_label="Time (UTC)",
        by_hour=True,
        series=[
            Series("Ordered", [step.desired for step in steps], "quiet"),
            Series("Ready", [step.ready for step in steps], "accent"),
        ],
    )
    return [demand, replicas]


def _score(steps: Sequence[Step]) -> str:
    """Return how often the forecast was enough, in words; empty where nothing was expected of anything."""
    pairs = [(step.came, step.expected) for step in steps if step.expected]
    if not pairs:
        return ""
    enough = sum(came <= expected for came, expected in pairs)
    most = max(came / expected for came, expected in pairs)
    worst = "" if enough == len(pairs) else f", at worst {most:.1f} times as much"
    return f" No more came than was expected in {formats.number(enough)} of {formats.number(len(pairs))} such times{worst}."
