"""Teams' addresses at rest: nobody reads them without the pepper, and they outlive a replaced one."""

import pytest

from accounts.keys import Pepper
from api.webhooks.addresses import BadCallbackUrl
from api.webhooks.sealed_addresses import MOST_CHARS, SealedAddresses
from proxy.responses.stored.sealing import Sealing

OLD, NEW = (Pepper(id=name, secret=name.encode() * 16) for name in ("old1", "new1"))
ADDRESS = "slack+https://hooks.slack.com/services/T0/SECRET"


def sealed_by(*peppers: Pepper) -> SealedAddresses:
    return SealedAddresses(Sealing(peppers))


def test_an_address_is_opened_for_its_team_alone() -> None:
    """Its text holds nothing of it, and the longest fits its column."""
    one = sealed_by(OLD)
    kept = one.sealed("team_a", ADDRESS)
    assert ("hooks" in kept, one.opened("team_a", kept)) == (False, ADDRESS)
    for team, text in (("team_b", kept), ("team_a", kept[:-8] + "AAAAAAA="), ("team_a", kept[:-3])):
        with pytest.raises(BadCallbackUrl, match="enter it again"):
            one.opened(team, text)
    mixed = "".join(chr(33 + number * 7919 % 94) for number in range(MOST_CHARS))
    assert len(one.sealed("team_a", mixed)) <= 2_000
    assert one.opened("team_a", one.sealed("team_a", mixed)) == mixed


def test_a_replaced_pepper_opens_and_a_gone_one_does_not() -> None:
    """What is sealed under an earlier one is told from the current one's; what was kept in clear is read as it is."""
    kept = sealed_by(OLD).sealed("team_a", ADDRESS)
    both = sealed_by(NEW, OLD)
    assert both.opened("team_a", kept) == both.opened("team_a", ADDRESS) == ADDRESS
    assert not kept.startswith(both.prefix)
    assert both.sealed("team_a", ADDRESS).startswith(both.prefix)
    with pytest.raises(BadCallbackUrl, match="pepper that is gone"):
        sealed_by(NEW).opened("team_a", kept)
