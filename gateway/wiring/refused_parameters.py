"""Wiring of parameters that targets refused: a worker tells the control plane, which tells all workers."""

from typing import Final

from gateway.link.connection import Connection
from gateway.link.hub import Hub
from gateway.link.link import Link
from gateway.link.worker_questions import ParametersRefused
from proxy.plan.refused_parameters import Refused, RefusedParameters

_KEY: Final = "refused parameters"


def share_refused_parameters(hub: Hub, refused: RefusedParameters) -> None:
    """Keep what any process of this host met, and publish it to all workers, those included that come later."""

    def publish() -> None:
        # Whole, under one key: what is published stays, and must not grow with the names that callers think of.
        hub.publish(_KEY, ParametersRefused(refused.known))

    def hear(_from: Connection, message: ParametersRefused) -> None:
        refused.learn(message.refused)
        publish()

    def tell(_refused: Refused) -> None:
        publish()

    refused.tell = tell
    hub.handlers.when_told(ParametersRefused, hear)


def exchange_refused_parameters(link: Link, refused: RefusedParameters) -> None:
    """Tell the control plane what this worker met, and learn what others did. Call it before the link starts."""

    def hear(_from: object, message: ParametersRefused) -> None:
        refused.learn(message.refused)

    def tell(met: Refused) -> None:
        link.tell(ParametersRefused((met,)))

    refused.tell = tell
    link.handlers.when_told(ParametersRefused, hear)
