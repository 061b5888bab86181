"""Changes around measurements, each with its audit entry: ordering and stopping one, accepting its row, going back."""

import contextlib
from collections.abc import Iterator

import msgspec

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog, Change
from accounts.errors import UnknownTeam
from accounts.store import AccountStore
from api.web.changing import changing
from classifier.learning.store import LearningError, LearningStore
from classifier.measuring.result import Result
from classifier.measuring.store import Measurement, MeasurementError, MeasurementStore, Order
from cost.prices import usd
from proxy.errors import BadRequest
from proxy.learning.measuring import TEAM, TEAM_NAME
from proxy.learning.tunings import TuningRefused, accept_measured, roll_back

MOST_QUESTIONS = 1_260
MOST_AT_ONCE = 64
MOST_TOKENS = 128_000


async def order_measurement(
    log: AuditLog, actor: Actor, operator: str, order: Order, *, anew: bool = False
) -> tuple[Measurement, bool]:
    """Order a measurement, booked to a team of its own, which is made where it is missing. The second value is True for
    one that goes on where it stopped. A gateway process begins within seconds. Raises BadRequest.
    """
    check_order(order)
    with _refusals():
        async with changing(log, actor, "measurement.ordered", operator) as change:
            await _ensure_team(change, operator)
            found, goes_on = await MeasurementStore(change.within).order(order, actor.name, anew=anew)
            after = {
                "target": order.target_id,
                "questions": order.questions,
                "budget_usd": f"{usd(order.budget_nanousd):f}",
                "goes_on": goes_on,
            }
            change.tell("measurement", found.measurement_id, None, after, team_id=TEAM)
    return found, goes_on


def check_order(order: Order) -> None:
    """Raise BadRequest for bounds that nobody can mean."""
    if not 1 <= order.questions <= MOST_QUESTIONS:
        raise BadRequest(f"`questions` is between 1 and {MOST_QUESTIONS}, as many as there are.", param="questions")
    if order.budget_nanousd <= 0:
        raise BadRequest("`budget` is an amount above 0.", param="budget")
    if not 1 <= order.at_once <= MOST_AT_ONCE:
        raise BadRequest(f"`at_once` is between 1 and {MOST_AT_ONCE}.", param="at_once")
    if not 1 <= order.max_tokens <= MOST_TOKENS:
        raise BadRequest(f"`max_tokens` is between 1 and {MOST_TOKENS}.", param="max_tokens")


async def stop_measurement(log: AuditLog, actor: Actor, operator: str, measurement_id: str) -> bool:
    """Stop a measurement; what is under way is cut. False where it had ended. Raises BadRequest."""
    with _refusals():
        async with changing(log, actor, "measurement.stopped", operator) as change:
            store = MeasurementStore(change.within)
            await store.find(measurement_id)
            stopped = await store.stop(measurement_id, f"stopped by {actor.name}")
            change.tell("measurement", measurement_id, {"running": stopped}, {"running": False}, team_id=TEAM)
    return stopped


async def accept_measurement(log: AuditLog, actor: Actor, operator: str, measurement_id: str) -> int:
    """Put the measured row in use, as a new tuning, whose version is returned. Raises BadRequest."""
    with _refusals():
        async with changing(log, actor, "tuning.accepted", operator) as change:
            measurements, learning = MeasurementStore(change.within), LearningStore(change.within)
            found = await measurements.find(measurement_id)
            result = read_result(found)
            if found.state == "running" or result is None:
                raise MeasurementError(f"the measurement of {found.target_id} has not ended")
            if found.tuning_version is not None:
                raise MeasurementError(f"it was accepted already, as tuning {found.tuning_version}")
            before = await learning.active_version()
            version = await accept_measured(learning, result)
            await measurements.accepted(measurement_id, version)
            after = {"in_use": version, "target": found.target_id, "measurement": measurement_id}
            change.tell("tuning", str(version), {"in_use": before}, after)
    return version


async def roll_back_tuning(log: AuditLog, actor: Actor, operator: str, version: int | None = None) -> int:
    """Go back to an earlier tuning, by default to the one before; 0 is none. Raises BadRequest."""
    with _refusals():
        async with changing(log, actor, "tuning.rolled_back", operator) as change:
            store = LearningStore(change.within)
            before = await store.active_version()
            now = await roll_back(store, version)
            change.tell("tuning", str(now), {"in_use": before}, {"in_use": await store.active_version()})
    return now


def read_result(measurement: Measurement) -> Result | None:
    """Return the result; None before it ended, and for one that an earlier version of the program wrote otherwise."""
    if measurement.result is None:
        return None
    try:
        return msgspec.json.decode(measurement.result, type=Result)
    except msgspec.DecodeError:
        return None


async def _ensure_team(change: Change, operator: str) -> None:
    accounts = AccountStore(change.within)
    try:
        await accounts.team_of(operator, TEAM)
    except UnknownTeam:
        team = await accounts.create_team(TEAM, TEAM_NAME, organisation_id=operator)
        change.tell("team", TEAM, None, {"name": team.name}, team_id=TEAM)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (MeasurementError, TuningRefused, LearningError) as error:
        text = str(error).rstrip(".")
        raise BadRequest(f"{text[:1].upper()}{text[1:]}.") from error
