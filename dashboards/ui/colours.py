"""Colours of models: the same model has the same colour on every chart."""

from collections.abc import Iterable, Mapping
from typing import Final
from zlib import crc32

COLOURS: Final = 12
"""Number of colours, `--chart-1` to `--chart-12` in app.css."""


def model_colours(configured: Iterable[str], drawn: Iterable[str]) -> Mapping[str, int]:
    """Return the colour number of each drawn model, from 1.

    Configured models take the colours in the configuration's order, from the first again after the last; a model that
    is configured no more takes one by its name. Where that would repeat a colour within one chart, the later model takes
    the next free one.
    """
    places = {name: place for place, name in enumerate(configured)}
    found: dict[str, int] = {}
    taken: set[int] = set()
    for name in sorted(drawn, key=lambda each: (each not in places, places.get(each, 0), each)):
        first = places.get(name, crc32(name.encode())) % COLOURS
        free = [colour for step in range(COLOURS) if (colour := (first + step) % COLOURS + 1) not in taken]
        found[name] = free[0] if free else first + 1
        taken.add(found[name])
    return found
