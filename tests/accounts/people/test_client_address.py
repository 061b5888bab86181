"""What counts as one sender."""

import pytest

from accounts.people.client_address import site_of


@pytest.mark.parametrize(
    ("address", "site"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("nonsense", "nonsense"),
    ],
)
def test_a_sender_has_all_addresses_of_its_network(address: str, site: str) -> None:
    """One IPv4 address, and the 2^64 addresses that whoever has one of IPv6 has all of."""
    assert site_of(address) == site
