"""Preview of quality floors as plain values, for the command line and the API. Nothing is applied."""

from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

from cost.prices import usd
from proxy.tolerance import FloorResult, Preview

MAX_FLOORS: Final = 32


def floors_from(texts: Iterable[str]) -> tuple[float, ...]:
    """Floors from texts such as `0.95` or `95%`. Raises ValueError."""
    floors = tuple(_floor(text) for text in texts)
    if len(floors) > MAX_FLOORS:
        raise ValueError(f"at most {MAX_FLOORS} floors at once")
    return floors


def _floor(text: str) -> float:
    try:
        floor = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        floor = 0.0
    # A comparison with NaN is false, so that it is refused too.
    if not 0 < floor <= 1:
        raise ValueError("a quality floor is a share of the reference's quality, above 0 and at most 1, such as 0.95")
    return floor


def preview_as_json(preview: Preview, team_id: str | None) -> dict[str, Any]:
    """A preview as JSON values. Money is text, so that no reader rounds it to a float."""
    return {
        "object": "policy.preview",
        "team_id": team_id,
        "basis": preview.basis,
        "requests": preview.requests,
        "reference": list(preview.reference),
        "reference_usd_per_1000_requests": _dollars(preview.reference_cost_nanousd),
        "current": {
            "quality_floor": preview.current_floor,
            "tolerance": round(preview.current_tolerance, 6),
        },
        "offers": [_offer(offer) for offer in preview.offers],
        "unmeasured_targets": list(preview.unmeasured),
        "notes": list(notes(preview, team_id)),
    }


def _offer(offer: FloorResult) -> dict[str, Any]:
    return {
        "quality_floor": offer.floor,
        "tolerance": round(offer.tolerance, 6),
        "reached": offer.reached,
        "quality_kept": round(offer.kept, 4),
        "quality_kept_error": round(offer.kept_error, 4),
        "usd_per_1000_requests": _dollars(offer.cost_nanousd),
        "saving_share": None if offer.saving is None else round(offer.saving, 4) + 0.0,  # Never -0.
        "shares": {name: round(share, 4) for name, share in offer.shares.items()},
        "current": offer.current,
    }


def _dollars(amount_nanousd: int | None) -> str | None:
    """Exact dollars as text, without exponent, with at least two decimals; None for unknown."""
    if amount_nanousd is None:
        return None
    amount = usd(amount_nanousd).quantize(Decimal("0.000000001"))
    whole, _, rest = f"{amount:f}".partition(".")
    return f"{whole}.{rest.rstrip('0'):0<2}"


def notes(preview: Preview, team_id: str | None) -> Iterable[str]:
    """Sentences on the preview's data, its reliability, and how to apply a floor."""
    if preview.basis == "none":
        yield (
            "No outcomes were measured for these targets, or there is nothing measured to compare them with, so `auto` "
            "goes by each target's declared `capability` and a floor changes nothing. Name rows of the ability table "
            "(`ability` of a model) and the reference (cost.reference_target) to change that."
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
        yield "A floor marked as not reached cannot be kept with these targets; its row shows the most that can."
    if preview.basis != "none" and preview.unmeasured:
        yield (
            f"Not measured, and so in no figure here: {', '.join(preview.unmeasured)}. `auto` may still choose them by "
            "their declared capability."
        )
    yield (
        "Nothing was changed. To apply a floor: "
        f"`weighbridge teams set {team_id or 'TEAM'} --quality-floor 0.95`, or policy.quality_floor for every team."
    )
