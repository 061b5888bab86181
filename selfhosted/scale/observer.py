"""The decisions that the autoscaler reports for metrics."""

from selfhosted.scale.policy import Reason


class ScaleObserver:
    """Receives decisions; this base class ignores them. Pool names come from the configuration and reasons are fixed,
    so both can be labels.
    """

    def set_desired_replicas(self, pool: str, desired: int) -> None: ...

    def count_scale_decision(self, pool: str, reason: Reason) -> None: ...
