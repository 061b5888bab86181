"""How the sample's pool was scaled: the autoscaler's own decisions over the last day, after the same day of the week before.

Only what came is made up. The forecast and the orders are the policy's, and replicas are there one cold start after they were ordered.
"""

import random
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from selfhosted.config import ScaleConfig
from selfhosted.scale.policy import ScaleDecision, ScalePolicy
from selfhosted.scale.signals import Signals

_BEGIN_DAYS_AGO: Final = (8, 1)
"""When the stretches of a day begin that are decided on: from the first the forecast knows what is usual in the second."""
_US: Final = 1_000_000
_DAY_S: Final = 86_400
_MINUTE_S: Final = 60
_WORK_A_REQUEST: Final = 3_000.0
_SCATTER: Final = 0.06
_RUNNING: Final = 8


class Scaled(msgspec.Struct, frozen=True):
    """The last decision, and what was learnt by then, as the autoscaler saves it."""

    decision: ScaleDecision
    state: str


def scaled(scale: ScaleConfig, carries: float, busy: Callable[[int], float], end_us: int, seed: int) -> Scaled:
    """Decide once a minute of both days, the last of which ends at `end_us`. `busy` returns what comes at a time in microseconds, as a part of what one replica
    carries, which is `carries` in prompt tokens a second; minutes scatter about it.
    """
    rng = random.Random(seed)  # noqa: S311 - it makes up a history, it guards nothing
    policy = ScalePolicy(scale, carries=carries)
    end_s = end_us // _US
    ordered: deque[int] = deque([0], maxlen=1 + int(scale.cold_start_s // _MINUTE_S))
    decision = ScaleDecision(0, "idle", "nothing was decided")
    begins = [end_s - days * _DAY_S for days in _BEGIN_DAYS_AGO]
    for at_s in (at_s for begin in begins for at_s in range(begin, begin + _DAY_S, _MINUTE_S)):
        part, ready = busy(at_s * _US) * rng.lognormvariate(0, _SCATTER), min(ordered)
        work = part * carries
        decision = policy.decide(
            Signals(
                at_s=at_s,
                wall_s=at_s,
                ready=ready,
                starting=ordered[-1] - ready,
                running=round(_RUNNING * part),
                kv_used=min(float(ready), scale.kv_high * part),
                missed=0.0,
                slow=0.0,
                input_tokens_per_s=work,
                served_tokens_per_s=min(work, ready * carries),
                arrivals_per_s=work / _WORK_A_REQUEST,
            )
        )
        ordered.append(decision.desired)
    return Scaled(decision, policy.state())
