"""The gaps in watching that are reported for metrics."""


class HoursObserver:
    """Receives the length of gaps in watching; this base class ignores them."""

    def hours_unwatched(self, pool: str, seconds: float) -> None: ...
