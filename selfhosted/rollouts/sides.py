"""The replicas of a pool that serve the version that a conversation gets. Computed once for each snapshot and rollout."""

from collections.abc import Mapping
from typing import Final

from selfhosted.replica import PoolSnapshot, ReplicaRequest
from selfhosted.rollouts.versions import Rollout, gets_candidate, serves

UNSAID: Final = "-"
"""Placeholder for the version of a replica that reports none during a rollout; no version is called so."""
_NOBODY: Final[frozenset[str]] = frozenset()


class PoolVersions:
    """The versions of one pool's replicas in one process, and the rollout between them."""

    def __init__(self) -> None:
        self._rollout: Rollout | None = None
        self._snapshot: PoolSnapshot | None = None
        self._of: Mapping[str, str] = {}
        self._stable = _NOBODY
        self._candidate = _NOBODY

    @property
    def rollout(self) -> Rollout | None:
        """The rollout as it was told last; None before any step."""
        return self._rollout

    def adopt(self, rollout: Rollout | None) -> None:
        """Take over a message about the rollout."""
        self._rollout, self._snapshot = rollout, None

    def of(self, snapshot: PoolSnapshot, replica: str) -> str:
        """Return the version that the replica runs. When nobody says, it is `UNSAID` during a rollout, so that the books have
        what is compared with, and otherwise empty.
        """
        if snapshot is not self._snapshot:
            self._take(snapshot)
        return self._of.get(replica, "" if self._rollout is None else UNSAID)

    def meant(self, snapshot: PoolSnapshot, ask: ReplicaRequest) -> frozenset[str] | None:
        """Return the replicas that take requests and run the version meant for the conversation; None without a rollout.

        An adapter was made for one version of its model, so what asks for one stays with the stable version. The rest of an
        answer is meant for the version that began it, whatever became of the rollout meanwhile.
        """
        rollout = self._rollout
        if snapshot is not self._snapshot:
            self._take(snapshot)
        if ask.version and ask.version != UNSAID:
            return frozenset(each.name for each in snapshot.taking if self._of.get(each.name) == ask.version)
        if rollout is None:
            return None
        return self._candidate if ask.adapter is None and gets_candidate(rollout, ask.root) else self._stable

    def _take(self, snapshot: PoolSnapshot) -> None:
        self._snapshot = snapshot
        self._of = {each.name: each.address.version for each in snapshot.replicas if each.address.version}
        rollout = self._rollout
        if rollout is None:
            return
        self._candidate, self._stable = (
            frozenset(
                each.name for each in snapshot.taking if serves(rollout, each.address.version, candidate=is_candidate)
            )
            for is_candidate in (True, False)
        )
