"""A link to a real Redis that answers within the call, so that a test decides what happens when."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from redis import Redis

from accounts.caller import Caller
from proxy.admit.limits.headers import duration
from proxy.admit.limits.limit import Kind, Limit, Scope
from proxy.shared.redis.scripts import Script
from proxy.shared.redis.shared_state import Argument, FailureKind, Recovered, SharedStateUnavailable

PREFIX = "{test}:"
CALLER = Caller(key_id="key_1", key_name="ci", team_id="payments", organisation_id="acme")
_Result = TypeVar("_Result")


class DirectLink:
    """A holder from its making on, but of use only once it was found."""

    prefix = PREFIX

    def __init__(self, url: str, boot: str = "boot", *, healthy: bool = False) -> None:
        # Its replies are bytes here, which its types do not tell.
        self.redis: Any = Redis.from_url(url)
        self.healthy = healthy
        self.fails: FailureKind | None = None
        """The next call fails so; one that is late is executed all the same."""
        self._boot = boot
        self._number = 0
        self._on_lost: list[Callable[[], None]] = []
        self._on_recovered: list[Recovered] = []
        self._on_usable: list[Callable[[], None]] = []
        self._register()

    @property
    def holder(self) -> str:
        return f"{self._boot}:{self._number}"

    def on_lost(self, callback: Callable[[], None]) -> None:
        self._on_lost.append(callback)

    def on_recovered(self, callback: Recovered) -> None:
        self._on_recovered.append(callback)

    def on_usable(self, callback: Callable[[], None]) -> None:
        self._on_usable.append(callback)

    async def call(
        self,
        script: Script,
        keys: Sequence[str | bytes],
        args: Sequence[Argument],
        *,
        unwanted: Callable[[Any], None] | None = None,
    ) -> Any:
        failure, self.fails = self.fails, None
        if failure is None or failure == "late":
            reply = self.run(script, keys, args)
        if failure is not None:
            raise SharedStateUnavailable(failure)
        return reply

    def tell(self, script: Script, keys: Sequence[str | bytes], args: Sequence[Argument]) -> bool:
        if self.healthy:
            self.run(script, keys, args)
        return self.healthy

    def run(self, script: Script, keys: Sequence[str | bytes], args: Sequence[Argument]) -> Any:
        return self.redis.eval(script.text, len(keys), *keys, *args)

    def lose(self) -> None:
        self.healthy = False
        for lost in self._on_lost:
            lost()

    async def find(self) -> None:
        """As a new holder; what the old one held is given back."""
        held = f"{PREFIX}held:{self.holder}"
        for field, count in self.redis.hgetall(held).items():
            self.redis.decrby(f"{PREFIX}total:{field.decode()}", int(count))
        self.redis.delete(held)
        self.redis.zrem(f"{PREFIX}holders", self.holder)
        self._register()
        for recovered in self._on_recovered:
            await recovered(self)
        self.healthy = True
        for usable in self._on_usable:
            usable()

    def close(self) -> None:
        self.redis.close()

    def _register(self) -> None:
        self._number += 1
        self.redis.zadd(f"{PREFIX}holders", {self.holder: 1})


def done(work: Coroutine[Any, Any, _Result]) -> _Result:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        result: _Result = end.value
        return result
    raise AssertionError("it waits")


def limit(kind: Kind, burst: int, *, rate: int | None = None, scope: Scope = "team", whose: str = "payments") -> Limit:
    """A rate that equals its burst, unless told otherwise."""
    per_minute = 0 if kind == "concurrency" else burst if rate is None else rate
    return Limit(key=f"{scope}/{whose}//{kind}", scope=scope, kind=kind, rate=per_minute, burst=burst)


def told_of(kind: Kind, most: int, left: int, reset_s: float) -> bytes:
    """The headers of one limit."""
    figures = (("limit", str(most)), ("remaining", str(left)), ("reset", duration(reset_s).decode()))
    return "".join(f"x-ratelimit-{name}-{kind}: {figure}\r\n" for name, figure in figures).encode()
