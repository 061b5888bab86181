"""The record of one routing decision: the targets and the figures they were compared by, in a few hundred bytes, for
later questions.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from proxy.plan.evidence import Evidence
from proxy.plan.route_plan import Rejection, RoutePlan, why_too_weak
from settings.decoding import DECODE_ERRORS

MOST: Final = 12
"""The most targets in a record: those that could be asked, then those that were passed over, in the order of
planning.
"""
_MOST_DETAIL: Final = 160
_PARTS: Final = 10_000
"""The parts of 1 in which shares are written: four digits."""


class ConsideredTarget(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A target as it was compared. Costs are nano-dollars, chances are in [0, 1]; None where they are not known."""

    target_id: str
    why: str
    """The reason of a target that could be asked, the obstacle of one that was passed over."""
    may_be_asked: bool
    capability: float | None
    """Its declared capability, of one that could be asked; of one that was too weak by it, the most complexity that it is
    trusted with.
    """
    adequate: float | None
    """The predicted chance of an adequate answer, where the target was measured."""
    expected_nanousd: int | None
    """The expected price."""
    margin_nanousd: int | None
    """The cost of one more request, by which targets were put in order."""
    margin_why: str
    detail: str
    """The obstacle in words; empty where the numbers tell it."""
    evidence: Evidence | Literal[""] = ""
    """The evidence of its quality, the baseline model counted in; empty where that was not written down."""


class Considered(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A decision: its targets, those that could be asked first and in their order."""

    tolerance: float | None
    """The most by which a chance may fall below the reference's for this prompt; below 0 it must be higher."""
    reference_adequate: float | None
    """The reference's chance; None where declared capability decided."""
    targets: tuple[ConsideredTarget, ...]
    left_out: int = 0
    """Targets that did not fit into the record."""
    complexity: float | None = None
    """The complexity that declared capability was compared with."""
    stand_in: bool = False
    """True where the best known model stood for the reference, which has no row."""

    def note(self, target: ConsideredTarget) -> str:
        """Return the obstacle of one of its targets in words; empty for one that could be asked."""
        if target.detail or target.may_be_asked:
            return target.detail
        return why_too_weak(
            complexity=self.complexity,
            capability=target.capability,
            adequate=target.adequate,
            reference=self.reference_adequate,
            tolerance=self.tolerance,
            stand_in=self.stand_in,
        )

    @property
    def chosen(self) -> ConsideredTarget | None:
        """The target that came first; None where nothing is known of any."""
        return next((each for each in self.targets if each.may_be_asked), None)


_Row = tuple[str, str, bool, float | None, float | None, int | None, int | None, str, str, Evidence | Literal[""]]
"""The fields of a `ConsideredTarget` in their order, as it is written. Structs of them would only be made to be
encoded.
"""

_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Considered)


def written(plan: RoutePlan) -> str:
    """Return the plan's comparison as it is kept in the ledger: `Considered` as an array."""
    candidates, rejected, grounds = plan.candidates, plan.rejected, plan.grounds
    targets: list[_Row] = [
        (
            (target := each.target).target_id,
            each.reason,
            True,
            target.capability,
            _rounded(each.adequate),
            each.expected_nanousd,
            each.margin_nanousd,
            each.margin_why,
            "",
            grounds.get(target.target_id, ""),
        )
        for each in candidates[:MOST]
    ]
    if rejected:
        targets += [_rejection(each, grounds) for each in rejected[: MOST - len(targets)]]
    left_out = len(candidates) + len(rejected) - len(targets)
    told = (
        _rounded(plan.tolerance),
        _rounded(plan.reference_adequate),
        targets,
        left_out,
        plan.complexity,
        plan.stand_in,
    )
    return _encoder.encode(told).decode()


def compared(plan: RoutePlan) -> Considered:
    """Return the plan's comparison."""
    return _decoder.decode(written(plan))


def read(text: str) -> Considered | None:
    """Read the result of `written`. Return None where nothing was written, or another version wrote it."""
    if not text:
        return None
    try:
        return _decoder.decode(text)
    except DECODE_ERRORS:
        return None


def _rejection(rejection: Rejection, grounds: Mapping[str, Evidence]) -> _Row:
    return (
        rejection.target_id,
        rejection.obstacle,
        False,
        rejection.capability,
        _rounded(rejection.adequate),
        rejection.expected_nanousd,
        rejection.margin_nanousd,
        rejection.margin_why,
        rejection.detail[:_MOST_DETAIL],
        grounds.get(rejection.target_id, ""),
    )


def _rounded(share: float | None) -> float | None:
    # In a third of the time of `round`, which goes by the decimal digits.
    return None if share is None else (share * _PARTS + 0.5) // 1 / _PARTS
