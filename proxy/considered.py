"""What one request's targets were compared by, in a few hundred bytes, for those who later ask why it went there."""

from typing import Final

import msgspec

from proxy.policy import Candidate, Rejection, RoutePlan

MOST: Final = 12
"""Most targets written down: those that could be asked, then those that were passed over, as planning has them."""
_MOST_DETAIL: Final = 160
_PARTS: Final = 10_000
"""Shares are written to four digits."""


class ConsideredTarget(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One target as it was compared. Costs are nano-dollars, chances are in [0, 1]; None where they are not known."""

    target_id: str
    why: str
    """The reason of a target that could be asked, the obstacle of one that was passed over."""
    may_be_asked: bool
    capability: float | None
    """Its declared capability, of one that could be asked."""
    adequate: float | None
    """The predicted chance of an adequate answer, where the target was measured."""
    expected_nanousd: int | None
    """The expected price."""
    margin_nanousd: int | None
    """What one more request was reckoned at, by which targets were put in order."""
    margin_why: str
    detail: str
    """What stood in the way, in words."""


class Considered(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A decision: its targets, those that could be asked first and in their order."""

    tolerance: float | None
    """The most by which a chance may fall below the reference's."""
    reference_adequate: float | None
    """The reference's chance; None where declared capability decided."""
    targets: tuple[ConsideredTarget, ...]
    left_out: int = 0
    """Targets that did not fit into the record."""

    @property
    def chosen(self) -> ConsideredTarget | None:
        """The target that came first; None where nothing is known of any."""
        return next((each for each in self.targets if each.may_be_asked), None)


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Considered)


def written(plan: RoutePlan) -> str:
    """Returns the plan's comparison as it is kept in the ledger."""
    return _encoder.encode(compared(plan)).decode()


def compared(plan: RoutePlan) -> Considered:
    """Returns the plan's comparison."""
    candidates, rejected = plan.candidates[:MOST], plan.rejected
    targets = (*map(_candidate, candidates), *map(_rejection, rejected[: MOST - len(candidates)]))
    return Considered(
        tolerance=_rounded(plan.tolerance),
        reference_adequate=_rounded(plan.reference_adequate),
        targets=targets,
        left_out=len(plan.candidates) + len(rejected) - len(targets),
    )


def read(text: str) -> Considered | None:
    """Returns what `written` wrote; None where nothing was written, or another version wrote it."""
    if not text:
        return None
    try:
        return _decoder.decode(text)
    except msgspec.MsgspecError:
        return None


def _candidate(candidate: Candidate) -> ConsideredTarget:
    return ConsideredTarget(
        target_id=candidate.target.target_id,
        why=candidate.reason,
        may_be_asked=True,
        capability=candidate.target.capability,
        adequate=_rounded(candidate.adequate),
        expected_nanousd=candidate.expected_nanousd,
        margin_nanousd=candidate.margin_nanousd,
        margin_why=candidate.margin_why,
        detail="",
    )


def _rejection(rejection: Rejection) -> ConsideredTarget:
    return ConsideredTarget(
        target_id=rejection.target_id,
        why=rejection.obstacle,
        may_be_asked=False,
        capability=None,
        adequate=_rounded(rejection.adequate),
        expected_nanousd=rejection.expected_nanousd,
        margin_nanousd=rejection.margin_nanousd,
        margin_why=rejection.margin_why,
        detail=rejection.detail[:_MOST_DETAIL],
    )


def _rounded(share: float | None) -> float | None:
    # In a third of the time of `round`, which goes by the decimal digits.
    return None if share is None else (share * _PARTS + 0.5) // 1 / _PARTS
