"""Baselines of an attempt: the cost of the same work at the reference, the cheapest capable and a hosted target."""

from collections.abc import Mapping
from typing import Final

import msgspec

from cost.prices import Price, meters
from cost.usage import Usage

_PER_MILLION: Final = 1_000_000


class Comparator(msgspec.Struct, frozen=True, kw_only=True):
    """A target to compare with, at its price in effect.

    Tokens are not portable: `tokenizer_ppm` is how many tokens its tokenizer makes of a text that one tokenizer, chosen
    once for all targets, makes a million of. None if nobody measured it; tokens then count one for one.
    """

    target_id: str
    price: Price
    tokenizer_ppm: int | None = None
    label: str = ""
    """`target@version`, as an entry keeps it; follows from the others."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "label", f"{self.target_id}@{self.price.version}")

    def worth_nanousd(self, usage: Usage, *, batch: bool, counted_ppm: int | None) -> int:
        """Return the cost here of `usage` that another target counted, cache and batch discounts included.

        `counted_ppm` is the other target's tokenizer ratio. Rounded half up once, at the end.
        """
        ours, theirs = self.tokenizer_ppm, counted_ppm
        if ours is None or theirs is None or ours == theirs:
            return self.price.cost_nanousd(usage, batch=batch)
        *figures, request = self.price.applying(usage.input_tokens * ours // theirs, batch=batch).figures()
        tokens = sum(amount * figure for amount, figure in zip(meters(usage), figures, strict=False))
        divisor = _PER_MILLION * theirs
        return (tokens * ours + request * theirs + divisor // 2) // divisor


class Baselines(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of one answered attempt elsewhere, in nano-dollars; None without a comparator.

    Prices are `target@version`.
    """

    reference_nanousd: int | None = None
    reference_price: str = ""
    cheapest_nanousd: int | None = None
    cheapest_price: str = ""
    hosted_nanousd: int | None = None
    hosted_price: str = ""


NO_BASELINES: Final = Baselines()


class Comparators(msgspec.Struct, frozen=True, kw_only=True):
    """The configured comparators; immutable, so that a reload replaces it whole."""

    reference: Comparator | None = None
    hosted: Mapping[str, Comparator] = {}
    """Per target of our own: the target that hosts the same weights."""

    def baselines(
        self,
        usage: Usage,
        *,
        by: Comparator,
        own: bool,
        cost_nanousd: int,
        cheapest: Comparator | None,
        batch: bool = False,
    ) -> Baselines:
        """Return all three baselines of one answer that its caller got, as it is booked.

        `by` is the target that made it, `own` True if that was on our own GPUs. `cheapest` is the cheapest commercial
        target good enough for the prompt, if any.
        """
        hosted, counted_ppm = self.hosted.get(by.target_id), by.tokenizer_ppm
        if hosted is None and not own:
            # A bought target is the hosted one itself, so its own cost is the baseline.
            hosted_nanousd: int | None = cost_nanousd
            hosted_price = by.label
        else:
            hosted_nanousd, hosted_price = _cost_at(hosted, usage, batch, counted_ppm)
        reference_nanousd, reference_price = _cost_at(self.reference, usage, batch, counted_ppm)
        cheapest_nanousd, cheapest_price = _cost_at(cheapest, usage, batch, counted_ppm)
        return Baselines(
            reference_nanousd=reference_nanousd,
            reference_price=reference_price,
            cheapest_nanousd=cheapest_nanousd,
            cheapest_price=cheapest_price,
            hosted_nanousd=hosted_nanousd,
            hosted_price=hosted_price,
        )


def _cost_at(
    comparator: Comparator | None, usage: Usage, batch: bool, counted_ppm: int | None
) -> tuple[int | None, str]:
    if comparator is None or not comparator.price.covers(usage):
        return None, ""
    return comparator.worth_nanousd(usage, batch=batch, counted_ppm=counted_ppm), comparator.label
