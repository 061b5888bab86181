"""Charts as data, with their table twin."""

import json

import pytest

from dashboards.ui.charts import Chart, Mark, Series
from dashboards.ui.rendering import environment

DAY = 86_400_000_000


def test_drawn_in_dollars_shown_exactly() -> None:
    """The script gets dollars and seconds; the twin has money as people read it."""
    chart = Chart(
        shape="line",
        title="Spend",
        x=[0, DAY],
        series=[Series("Cost", [1_500_000_000, None])],
        unit="usd",
        marks=[Mark(DAY, "today")],
    )
    data = json.loads(chart.data)
    assert data["x"] == [0, 86_400]
    assert data["series"][0]["values"] == [1.5, None]
    assert data["marks"] == [{"x": 86_400, "label": "today"}]
    assert chart.rows() == [["1970-01-01", "$1.50"], ["1970-01-02", "—"]]


def test_nothing_to_draw() -> None:
    """Zeros and gaps alone are told in words."""
    chart = Chart(shape="bars", title="T", x=[1, 2], series=[Series("a", [0, None])], is_time=False, x_label="x")
    page = environment().from_string('{% import "ui.html" as ui with context %}{{ ui.chart(c) }}')
    text = page.render(c=chart, csrf="", title="")
    assert "Zero throughout this time." in text
    assert "data-chart" not in text
    unknown = Chart(shape="bars", title="T", x=[1, 2], series=[Series("a", [None, None])], is_time=False, x_label="x")
    assert "Nothing was recorded in this time." in page.render(c=unknown, csrf="", title="")


def test_uneven_series_are_refused() -> None:
    """A figure without its day would be drawn at another one's."""
    with pytest.raises(ValueError, match="as many"):
        Chart(shape="line", title="T", x=[1, 2], series=[Series("a", [1])])


def test_the_attribute_cannot_be_left() -> None:
    """A label with quotes and markup stays in the attribute."""
    chart = Chart(shape="line", title='"><b>', x=[0], series=[Series("'\"><script>", [1])])
    page = environment().from_string('{% import "ui.html" as ui with context %}{{ ui.chart(c) }}')
    text = page.render(c=chart, csrf="", title="")
    assert "<script>" not in text
    assert "<b>" not in text
