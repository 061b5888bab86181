"""Validation of prices taken from LiteLLM's table: that the table is there and has the names."""

import functools
from collections.abc import Iterator

from cost.errors import PriceError
from cost.price_book.litellm_table import read_table
from cost.price_book.price_config import LitellmPrices, dated_price, price_items
from gateway.configuration.file import Document, KeyPath, Problem
from providers.config import ProvidersSection


def price_problems(section: ProvidersSection, document: Document) -> list[Problem]:
    """Return a problem, with its line, for each name without a price. The table is read only when one is needed."""
    table = functools.cache(read_table)
    problems = []
    for path, target_id, item in _from_litellm(section):
        try:
            dated_price(target_id, item, table)
        except PriceError as error:
            problems.append(document.problem(path, str(error)))
    return problems


def _from_litellm(section: ProvidersSection) -> Iterator[tuple[KeyPath, str, LitellmPrices]]:
    for index, model in enumerate(section.models):
        for place, item in enumerate(price_items(model.prices)):
            if isinstance(item, LitellmPrices):
                inner: KeyPath = (place,) if isinstance(model.prices, tuple) else ()
                yield ("providers", "models", index, "prices", *inner, "name"), model.model_id, item
