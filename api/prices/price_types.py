"""Reply types of /v1/prices."""

from typing import Literal

import msgspec


class LongPromptPriceOut(msgspec.Struct, frozen=True, kw_only=True):
    """Price of prompts above a number of tokens."""

    above_tokens: int
    usd_per_million_tokens: dict[str, str]


class PriceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A price's figures by meter: exact decimals as text, null where unknown."""

    usd_per_million_tokens: dict[str, str] | None
    usd_per_request: str | None
    usd_per_tool_call: dict[str, str]
    usd_per_unit: dict[str, str]
    long_prompts: list[LongPromptPriceOut]
    batch: "PriceFigures | None"
    flex: "PriceFigures | None"
    priority: "PriceFigures | None"


class DatedPriceOut(PriceFigures, frozen=True, kw_only=True):
    """A price with its source and first day."""

    version: str | None
    source: str | None
    effective_from: str | None
    note: str


class PriceEntered(DatedPriceOut, frozen=True, kw_only=True):
    """The price that was entered."""

    object: Literal["price"]
    target: str


class PriceOut(PriceEntered, frozen=True, kw_only=True):
    """A target's price now, and upcoming ones."""

    upcoming: list[DatedPriceOut]


class PriceWithdrawn(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a withdrawal; the next price in precedence applies again."""

    object: Literal["price.withdrawn"]
    target: str
    version: str
    withdrawn: bool
