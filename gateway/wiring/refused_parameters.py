"""Wiring of parameters that targets refused: a worker tells the control plane, which tells all workers. Workers of several hosts
tell each other through Redis, where there is one (`told_hosts`).
"""

from collections.abc import Mapping
from typing import Final

from gateway.link.connection import Connection
from gateway.link.hub import Hub
from gateway.link.link import Link
from gateway.link.worker_questions import ParametersRefused
from gateway.wiring.told_hosts import Learnt
from providers.parameters import KNOWN
from proxy.plan.refused_parameters import Refused, RefusedParameters

_KEY: Final = "refused parameters"
_BETWEEN: Final = " "
"""No parameter has one in its name."""
_AT_NONE: Final = "@none"
_WORDS: Final = {True: "refused without reasoning, too", False: "refused"}
_MOST_CHARS: Final = 200


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


class SharedRefusals:
    """The refusals as other hosts are told of them, by target, parameter, and whether the model was asked not to reason."""

    key: Final = "refused-parameters"

    def __init__(self, refused: RefusedParameters) -> None:
        self._refused = refused

    def known(self) -> Mapping[str, Learnt]:
        """Return those that are remembered now."""
        return {_name_of(each): Learnt(each.until, _WORDS[each.at_none]) for each in self._refused.known}

    def learn(self, told: Mapping[str, Learnt]) -> None:
        """Remember what other hosts met, of parameters that could have been met here."""
        met = [
            Refused(target_id, name, each.until, at_none=each.words == _WORDS[True])
            for written, each in told.items()
            for target_id, _, name in (written.removesuffix(_AT_NONE).rpartition(_BETWEEN),)
            if target_id and len(target_id) <= _MOST_CHARS and name in KNOWN
        ]
        self._refused.learn(met)
        for each in met:
            # For the control plane, whose pages tell it.
            self._refused.tell(each)


def _name_of(refused: Refused) -> str:
    return f"{refused.target_id}{_BETWEEN}{refused.name}{_AT_NONE if refused.at_none else ''}"
