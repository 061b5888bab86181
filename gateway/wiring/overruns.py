"""Wiring of targets that are set aside for hard budgets: a worker tells the control plane, which tells all workers. Workers of
several hosts tell each other through Redis, where there is one (`told_hosts`).
"""

from collections.abc import Mapping
from typing import Final

from gateway.link.connection import Connection
from gateway.link.hub import Hub
from gateway.link.link import Link
from gateway.link.worker_questions import SetAside
from gateway.wiring.told_hosts import Learnt
from proxy.plan.overruns import Overrun, Overruns

_KEY: Final = "overruns"


def share_overruns(hub: Hub, overruns: Overruns) -> None:
    """Keep what any process of this host found, and publish it to all workers, those included that come later."""

    def publish() -> None:
        # Whole, under one key: what is published stays, and must not grow with the names that callers think of.
        hub.publish(_KEY, SetAside(overruns.known))

    def hear(_from: Connection, message: SetAside) -> None:
        overruns.learn(message.overruns)
        publish()

    def tell(_target_id: str, _overrun: Overrun) -> None:
        publish()

    overruns.tell = tell
    hub.handlers.when_told(SetAside, hear)


def exchange_overruns(link: Link, overruns: Overruns) -> None:
    """Tell the control plane what this worker found, and learn what others did. Call it before the link starts."""

    def hear(_from: object, message: SetAside) -> None:
        overruns.learn(message.overruns)

    def tell(target_id: str, overrun: Overrun) -> None:
        link.tell(SetAside({target_id: overrun}))

    overruns.tell = tell
    link.handlers.when_told(SetAside, hear)


class SharedOverruns:
    """The overruns as other hosts are told of them, by target."""

    key: Final = "set-aside"

    def __init__(self, overruns: Overruns) -> None:
        self._overruns = overruns

    def known(self) -> Mapping[str, Learnt]:
        """Return those that are set aside now."""
        return {target_id: Learnt(each.until, each.found) for target_id, each in self._overruns.known.items()}

    def learn(self, told: Mapping[str, Learnt]) -> None:
        """Set aside what other hosts found."""
        overruns = {target_id: Overrun(each.until, each.words) for target_id, each in told.items()}
        self._overruns.learn(overruns)
        for target_id, overrun in overruns.items():
            # For the control plane, which plans the lines of batches.
            self._overruns.tell(target_id, overrun)
