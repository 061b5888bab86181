"""Preview of quality floors as plain values, for the command line and the API. Nothing is applied."""

from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

from api.policy.anchored import Month, anchored
from api.policy.traffic import DAYS, AutoTraffic
from api.web.gateway import Gateway
from cost.prices import usd
from cost.reports.usage import UsageSums
from cost.shown import percent, rounded_money
from proxy.plan.evidence import evidence_notes
from proxy.plan.quality_tolerance import PREVIEWED_REQUESTS, FloorResult, PoolSize, Preview

MAX_FLOORS: Final = 32


def floors_from(texts: Iterable[str]) -> tuple[float, ...]:
    """Return the floors from texts such as `0.95` or `95%`. Raises ValueError."""
    floors = tuple(_floor(text) for text in texts)
    if len(floors) > MAX_FLOORS:
        raise ValueError(f"at most {MAX_FLOORS} minimums at once")
    return floors


def _floor(text: str) -> float:
    try:
        floor = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        floor = 0.0
    # A comparison with NaN is false, so that it is refused too.
    if not 0 < floor <= 1:
        raise ValueError("a minimum quality is a share of the baseline model's, above 0 and at most 1, such as 0.95")
    return floor


def preview_as_json(preview: Preview, team_id: str | None, traffic: AutoTraffic | None = None) -> dict[str, Any]:
    """Return a preview as JSON values. Money is text, so that no reader rounds it to a float. `traffic` is what was asked of
    `auto` lately and what it cost, where that is known: the figures start from it then.
    """
    preview, months = anchored(preview, traffic or AutoTraffic(totals=UsageSums(), auto_share=None))
    requests_per_s = None if traffic is None else traffic.per_s
    return {
        "object": "policy.preview",
        "team_id": team_id,
        "basis": preview.basis,
        "requests": preview.requests,
        "reference": list(preview.reference),
        "reference_usd_per_1000_requests": _dollars(preview.reference_cost_nanousd),
        "current": {
            "quality_floor": preview.current_floor,
            "willing_usd": _dollars(round(preview.current_willing_nanousd) if preview.offers else None),
        },
        "anchored": any(month is not None for month in months),
        "offers": [
            {**_offer(offer, preview.pools), "two_first": _two_first(offer, traffic), "month": _month(month)}
            for offer, month in zip(preview.offers, months, strict=True)
        ],
        "pools": [_pool(pool) for pool in preview.pools],
        "requests_per_s": None if requests_per_s is None else round(requests_per_s, 6),
        "unmeasured_targets": list(preview.unmeasured),
        "evidence": dict(preview.evidence),
        "notes": [
            *(bill_words(preview, traffic) if traffic is not None and any(months) else ()),
            *notes(preview, team_id, requests_per_s),
            *two_words(preview, team_id, traffic),
        ],
    }


def replicas_up(gateway: Gateway) -> dict[str, int]:
    """Return the replicas that take requests now, by pool."""
    view = gateway.views.fleet
    return {} if view is None else {name: len(each.snapshot().taking) for name, each in view.pools.items()}


def _pool(pool: PoolSize) -> dict[str, Any]:
    return {
        "pool": pool.name,
        "replicas": pool.replicas,
        "basis": "live" if pool.live else "planned",
        "price": "margin" if pool.by_margin else "average",
    }


def _offer(offer: FloorResult, pools: Iterable[PoolSize]) -> dict[str, Any]:
    return {
        "quality_floor": offer.floor,
        "willing_usd": _dollars(round(offer.willing_nanousd)),
        "reached": offer.reached,
        "quality_kept": round(offer.kept, 4),
        "quality_kept_error": round(offer.kept_error, 4),
        "usd_per_1000_requests": _dollars(offer.cost_nanousd),
        "margin_usd_per_1000_requests": _dollars(offer.margin_nanousd),
        "without_room": {
            "willing_usd": _dollars(round(offer.full_willing_nanousd)),
            "usd_per_1000_requests": _dollars(offer.full_nanousd),
        },
        "saving_share": None if offer.saving is None else round(offer.saving, 4) + 0.0,  # Never -0.
        "shares": {name: round(share, 4) for name, share in offer.shares.items()},
        "own_share": round(offer.own_share, 4),
        "pools": [_use(pool, offer) for pool in pools],
        "current": offer.current,
    }


def _two_first(offer: FloorResult, traffic: AutoTraffic | None) -> dict[str, Any] | None:
    """Return the same minimum with two cheap models first, for requests whose answers can be compared."""
    two = offer.two
    if two is None:
        return None
    added_s = None if traffic is None else two.added_s(traffic.answer_s)
    return {
        "asked_of_two_share": round(two.asked, 4),
        "asked_again_share": round(two.again, 4),
        "usd_per_1000_requests": _dollars(two.cost_nanousd),
        "quality_kept_low": round(two.kept_low, 4),
        "quality_kept_high": round(two.kept_high, 4),
        "added_s": None if added_s is None else round(added_s, 3),
    }


def two_words(preview: Preview, team_id: str | None, traffic: AutoTraffic | None) -> Iterable[str]:
    """Tell the cost, the gain and the delay of `escalation: agreement`, before anybody turns it on."""
    for offer in preview.offers:
        two = offer.two
        if not offer.current or two is None:
            continue
        if not two.asked:
            yield (
                f"Two cheap models first (`--escalation agreement`) would pay for no prompt at a minimum of {percent(offer.floor)} with these models."
            )
            continue
        added_s = None if traffic is None else two.added_s(traffic.answer_s)
        later = (
            "Answers take as long as the slower of the two, and for those asked again the better model's time on top; how long that is "
            "is not known before each of these models has answered the team a few times."
            if added_s is None
            else f"By what these models took for the team's latest answers, one comes {added_s:+.2f} s later in the mean, and is held until its end."
        )
        yield (
            f"Two cheap models first (`weighbridge teams set {team_id or 'TEAM'} --escalation agreement`) at a minimum of {percent(offer.floor)}, of "
            f"{PREVIEWED_REQUESTS:,} requests whose answers a program can compare: {percent(two.asked, 0)} would be asked of two, at most {percent(two.again, 0)} "
            f"of a better model after them; they would cost at most {_thousand(two.cost_nanousd)} (now {_thousand(offer.cost_nanousd)}) and "
            f"keep {percent(two.kept_low)} to {percent(two.kept_high)} (now {percent(offer.kept)}), by how often both make the same mistake. {later} Other requests are decided as before."
        )


def _month(month: Month | None) -> dict[str, Any] | None:
    """Return the team's last 30 days at this floor."""
    if month is None:
        return None
    return {
        "usd": _dollars(month.cost_nanousd),
        "low_usd": _dollars(month.low_nanousd),
        "high_usd": _dollars(month.high_nanousd),
        "change_usd": _dollars(month.change_nanousd),
        "added_usd": _dollars(month.added_nanousd),
        "saved_usd": _dollars(month.saved_nanousd),
        "saved_share": None if month.saved_share is None else round(month.saved_share, 4) + 0.0,
    }


def bill_words(preview: Preview, traffic: AutoTraffic) -> Iterable[str]:
    """Return sentences on the basis of the figures, and where their intervals come from."""
    yield (
        f"Costs and shares start from the ledger: what the last {DAYS} days cost, and where the requests went. Another minimum "
        "moves only the requests that it would decide otherwise, each at the price ratio of its own lengths; named models, "
        "comparisons and adjustments stay as billed. Where the policy changed within these days, part of the bill is from before."
    )
    read = any(each.cost_error_nanousd for each in traffic.by_target.values())
    yield (
        f"Intervals hold 95 %: from the {preview.requests:,} prompts that the change is computed on"
        f"{', and from the latest requests that tell which part of the bill was for `auto`' if read else ''}. Another month's "
        "requests are not in them."
    )


def _use(pool: PoolSize, offer: FloorResult) -> dict[str, Any]:
    """Return the load that requests put on a pool, and the number that it carries."""
    replica_s = offer.replica_s.get(pool.name, 0.0)
    most = pool.carries_per_s(replica_s)
    return {
        "pool": pool.name,
        "replica_seconds_per_1000_requests": round(replica_s, 3),
        "carries_requests_per_s": None if most is None else round(most, 3),
    }


def _dollars(amount_nanousd: int | None) -> str | None:
    """Return exact dollars as text, without exponent, with at least two decimals; None for unknown."""
    if amount_nanousd is None:
        return None
    amount = usd(amount_nanousd).quantize(Decimal("0.000000001"))
    whole, _, rest = f"{amount:f}".partition(".")
    return f"{whole}.{rest.rstrip('0'):0<2}"


def room_words(preview: Preview, offer: FloorResult, requests_per_s: float | None) -> Iterable[str]:
    """Return a sentence or two on each of our own pools: what it carries at a floor, beside what is asked for."""
    for pool in preview.pools:
        replicas = f"{pool.replicas} replica{'' if pool.replicas == 1 else 's'}"
        known = (
            f"{replicas} that take{'s' if pool.replicas == 1 else ''} requests now"
            if pool.live
            else f"the {replicas} planned under `cost.pools`"
        )
        if not pool.replicas:
            yield f"{pool.name} has no replica up, so it is compared by its average price until it has one."
            continue
        most = pool.carries_per_s(offer.replica_s.get(pool.name, 0.0))
        if most is None:
            if offer.own_share:
                # The bill's requests went there, those that the preview is computed on would not: nothing tells how long they take.
                continue
            yield f"{pool.name} gets none of these requests at a minimum of {percent(offer.floor)}."
            continue
        asked = (
            ""
            if requests_per_s is None
            else f" Lately {_rate(requests_per_s)} were asked for on average, {percent(requests_per_s / most)} of that."
        )
        verb = "carries" if pool.replicas == 1 else "carry"
        yield (
            f"Room of {pool.name}: at a minimum of {percent(offer.floor)}, {known} {verb} {_rate(most)} of `auto`, by "
            f"its measured `seconds_per_million`.{asked} What is beyond overflows to what is bought."
            f"{'' if pool.live else ' No fleet was asked, so whether they are up and idle is not known.'}"
        )


def _rate(requests_per_s: float) -> str:
    """Return a rate in words, by the hour where it is slow."""
    if requests_per_s < _SLOW_PER_S:
        return f"{requests_per_s * 3_600:.2g} requests an hour"
    return f"{requests_per_s:.3g} requests a second"


_SLOW_PER_S: Final = 0.05


def own_words(preview: Preview, offer: FloorResult) -> Iterable[str]:
    """Return sentences on the basis on which our own pools are compared, and where that makes a minimum dearer in sum."""
    if not any(pool.by_margin and pool.replicas for pool in preview.pools):
        return
    yield (
        "Hours that are up are paid for anyway, so while our own pools have room their requests are compared by what one more "
        "costs. Cost and saving are what is booked, with our own at their average price; `adds` is what the requests add to "
        "what is paid anyway, and `when full` what they cost when our own have no room."
    )
    if offer.margin_nanousd > offer.full_nanousd:
        yield (
            f"Preferring our own GPUs does not pay at a minimum of {percent(offer.floor)}: their model is so much weaker on these "
            f"prompts that more of the others must go to a dearer one. It adds {_thousand(offer.margin_nanousd)} for "
            f"{PREVIEWED_REQUESTS:,} requests, by average prices they would cost {_thousand(offer.full_nanousd)}. A lower "
            "minimum, a better model in the pool, or `price: average` under `cost.pools` is cheaper."
        )


def _thousand(amount_nanousd: int) -> str:
    amount = usd(amount_nanousd)
    return rounded_money(amount, 2 if amount >= 1 else 4)


def notes(preview: Preview, team_id: str | None, requests_per_s: float | None = None) -> Iterable[str]:
    """Return sentences on our own pools, the preview's data, its reliability, and how to apply a floor."""
    for offer in preview.offers:
        if offer.current:
            yield from room_words(preview, offer, requests_per_s)
            yield from own_words(preview, offer)
    if preview.basis == "none":
        yield (
            "The classifier has no row of the baseline model (`cost.reference_target`), or of any model that `auto` may choose, so "
            "there is nothing to compare with, and no minimum changes anything: what is known of the models decides."
        )
    elif preview.basis == "own":
        yield (
            f"Computed on the team's last {preview.requests} requests: their mix and lengths are the team's own. Whether "
            "an answer is adequate is still the classifier's estimate; `weighbridge classifier recalibrate` holds it "
            "against verdicts on the team's own answers."
        )
    else:
        yield (
            f"Computed on {preview.requests} prompts that came with the classifier and that it was not trained on. They "
            "are benchmark questions: the team's own mix may save more or less, and keep more or less. From 200 "
            "requests of its own on, a team's preview is computed on those."
        )
    if preview.basis != "none":
        yield (
            "`kept` is expected, with the standard error that the number of requests leaves; it does not tell whether "
            "the probabilities are right for prompts unlike these."
        )
    if any(not offer.reached for offer in preview.offers):
        yield "A minimum marked as not reached cannot be kept with these models; its row shows the most that can."
    if preview.basis != "none" and preview.unmeasured:
        yield f"Not affected by the minimum, because they are not measured: {', '.join(preview.unmeasured)}."
    yield from evidence_notes(preview.evidence, trained=preview.trained)
    yield (
        "Nothing was changed. To apply a minimum: "
        f"`weighbridge teams set {team_id or 'TEAM'} --quality-floor 0.95`, or policy.quality_floor for every team."
    )
