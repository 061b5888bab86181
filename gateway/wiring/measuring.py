"""Wiring of measurements: the loop that works on what was ordered, on the pipeline's own dispatcher."""

import contextlib
from collections.abc import Callable

from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.store import AccountStore
from classifier.measuring.questions import calibration_set
from classifier.measuring.store import MeasurementStore
from classifier.prediction import Classifier
from proxy.dispatch.dispatcher import Dispatcher
from proxy.learning.measuring import Measuring, MeasuringRules, scorer
from proxy.shared.background_tasks import background, every

POLL_S = 2.0


def keep_measuring(
    engine: AsyncEngine,
    *,
    accounts: AccountStore,
    operator: str,
    classifier: Classifier,
    dispatcher: Dispatcher,
    rules: Callable[[], MeasuringRules],
    holder: str,
    stack: contextlib.AsyncExitStack,
) -> None:
    """Look every few seconds for a measurement that nobody works on."""
    measuring = Measuring(
        store=MeasurementStore(engine),
        accounts=accounts,
        operator=operator,
        rules=rules,
        dispatcher=dispatcher,
        scored=scorer(classifier, calibration_set),
        calibration=calibration_set,
        holder=holder,
    )
    background(stack, every(POLL_S, measuring.step))
