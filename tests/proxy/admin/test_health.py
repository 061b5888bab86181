"""Readiness: for traffic by what answering needs, for pages by what changes need."""

import pytest

from proxy.admin.health import Journals, Readiness, Starting

_IDLE = Journals(processes=0, waiting=0, oldest_s=0.0)


def _readiness(status: str, **checks: bool) -> Readiness:
    found = {"accepting": True, "ledger": True, "journals": True, "database": True, "control_plane": True, **checks}
    return Readiness(status=status, reason="", checks=found, journals=_IDLE, classifier={})


@pytest.mark.parametrize(
    ("readiness", "traffic", "pages"),
    [
        (_readiness("ready"), 200, 200),
        (_readiness("ready", database=False), 200, 503),
        (_readiness("ready", control_plane=False), 200, 503),
        (_readiness("ready", journals=False), 200, 200),
        (_readiness("not ready", accepting=False), 503, 503),
        (Starting.of(database=True, control_plane=True), 503, 503),
    ],
)
def test_pages_need_what_callers_do_not(readiness: Readiness | Starting, traffic: int, pages: int) -> None:
    """A control plane, and a database that takes writes: known keys are served without either."""
    assert (readiness.http_status, readiness.control_plane_status) == (traffic, pages)
