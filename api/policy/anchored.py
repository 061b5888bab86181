"""Forecasts of a minimum quality, anchored to a team's bill and to where its requests really went.

The present policy's month is the ledger's, to the cent. Another one's is that bill with each target's part changed as the
requests of that target would change; what no minimum touches (named models, comparisons, adjustments) stays as it is.
"""

from typing import Final, NamedTuple

import msgspec

from api.policy.traffic import AutoTraffic
from proxy.plan.quality_tolerance import PREVIEWED_REQUESTS, FloorResult, Preview

_SIGMAS: Final = 1.96
"""Standard errors on either side of a forecast: 95 of 100 of such intervals contain the true value."""


class Month(msgspec.Struct, frozen=True, kw_only=True):
    """The team's last 30 days under another policy, everything that it was billed for included. Nano-dollars."""

    cost_nanousd: int
    low_nanousd: int
    high_nanousd: int
    """The ends of a 95 % interval, from the number of requests that the change was computed on and the bill was read by."""
    change_nanousd: int
    """Difference to the bill; below 0 is cheaper."""
    added_nanousd: int
    """The cost that requests for `auto` add to what is paid anyway, while our own GPUs have room."""
    saved_nanousd: int | None
    """Saving against the baseline model for everything."""
    saved_share: float | None


class AnchoredPreview(NamedTuple):
    """A preview whose costs and shares start from the bill, and each floor's month; none where no bill is known."""

    preview: Preview
    months: tuple[Month | None, ...]


class _Moved(msgspec.Struct, kw_only=True):
    """Sums over the targets of the bill, after the change."""

    cost: float = 0.0
    variance: float = 0.0
    added: float = 0.0
    full: float = 0.0
    change: float = 0.0


def anchored(preview: Preview, traffic: AutoTraffic) -> AnchoredPreview:
    """Apply the changes that a preview predicts to the bill. Without a bill for `auto` nothing is anchored."""
    spent = traffic.totals.known_cost_nanousd
    if spent is None or not preview.offers or not traffic.served:
        return AnchoredPreview(preview, (None,) * len(preview.offers))
    found = [(offer, _moved(offer, traffic)) for offer in preview.offers]
    baseline = sum(each.baseline_nanousd for each in traffic.by_target.values())
    reference = baseline / traffic.served if baseline else None
    return AnchoredPreview(
        msgspec.structs.replace(
            preview,
            reference_cost_nanousd=None if reference is None else round(reference * PREVIEWED_REQUESTS),
            offers=tuple(_offer(offer, moved, traffic, preview.own, reference) for offer, moved in found),
        ),
        tuple(_month(moved, spent, traffic.totals.baseline_nanousd) for _, moved in found),
    )


def _moved(offer: FloorResult, traffic: AutoTraffic) -> _Moved:
    sums = _Moved()
    for name, spend in traffic.by_target.items():
        move = offer.moves.get(name)
        if move is None:
            # Not measured, or not to be chosen any more: no minimum moves what it has.
            stays = spend.cost_nanousd
            sums.cost, sums.added, sums.full = sums.cost + stays, sums.added + stays, sums.full + stays
            continue
        # Where a request costs nothing now there is no bill to scale, and the prediction stands by itself.
        scale = spend.cost_nanousd / move.cost_now if move.cost_now > 0 else spend.served
        then = scale * move.cost_then
        ratio = move.cost_then / move.cost_now if move.cost_now > 0 else 1.0
        sums.cost += then
        sums.change += then - spend.cost_nanousd
        sums.variance += (scale * move.cost_error) ** 2 + (spend.cost_error_nanousd * (ratio - 1)) ** 2
        sums.added += scale * move.added_then
        sums.full += scale * move.full_then
    return sums


def _month(moved: _Moved, spent: int, baseline: int) -> Month:
    change, reach = round(moved.change), _SIGMAS * moved.variance**0.5
    cost = spent + change
    return Month(
        cost_nanousd=cost,
        low_nanousd=round(cost - reach),
        high_nanousd=round(cost + reach),
        change_nanousd=change,
        added_nanousd=round(moved.added),
        saved_nanousd=baseline - cost if baseline else None,
        saved_share=(baseline - cost) / baseline if baseline else None,
    )


def _offer(
    offer: FloorResult, moved: _Moved, traffic: AutoTraffic, own: frozenset[str], reference: float | None
) -> FloorResult:
    """Return the offer with its money, shares and work as they follow from the bill."""
    requests = traffic.served
    each = PREVIEWED_REQUESTS / requests
    shares = _shares(offer, traffic)
    own_share = sum(share for name, share in shares.items() if name in own)
    work = own_share / offer.own_share if offer.own_share else 1.0
    cost, two = round(moved.cost * each), offer.two
    if two is not None and offer.cost_nanousd:
        # The sample's prompts are longer or shorter than the team's, and both figures stand side by side.
        two = msgspec.structs.replace(two, cost_nanousd=round(two.cost_nanousd * cost / offer.cost_nanousd))
    return msgspec.structs.replace(
        offer,
        two=two,
        cost_nanousd=cost,
        margin_nanousd=round(moved.added * each),
        full_nanousd=round(moved.full * each),
        saving=None if not reference else 1 - moved.cost / requests / reference,
        shares=shares,
        own_share=own_share,
        replica_s={pool: seconds * work for pool, seconds in offer.replica_s.items()},
    )


def _shares(offer: FloorResult, traffic: AutoTraffic) -> dict[str, float]:
    """Return the requests by target: from each target's of now."""
    found = dict.fromkeys(offer.shares, 0.0)
    for name, spend in traffic.by_target.items():
        part = spend.served / traffic.served
        for where, share in (offer.moves[name].shares if name in offer.moves else {name: 1.0}).items():
            found[where] = found.get(where, 0.0) + part * share
    return {name: share for name, share in found.items() if share or name in offer.shares}
