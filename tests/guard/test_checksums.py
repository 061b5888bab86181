"""The checksums: the numbers that their own authorities publish, and how many random ones pass."""

import random
from collections.abc import Callable

import pytest

from guard.checksums import CHECKSUMS

KNOWN = {
    "luhn": ("79927398713", "79927398710"),
    "card": ("4111111111111111", "4111111111111112"),
    "iban": ("GB82 WEST 1234 5698 7654 32", "GB83 WEST 1234 5698 7654 32"),
    "us_ssn": ("078-05-1120", "666-05-1120"),
    "us_routing": ("021000021", "021000022"),
    "nl_bsn": ("111222333", "111222334"),
    "gb_nhs": ("943 476 5919", "943 476 5918"),
    "au_tfn": ("123 456 782", "123 456 783"),
    "ca_sin": ("123 456 782", "123 456 783"),
    "in_aadhaar": ("2341 2341 2346", "2341 2341 2347"),
    "pl_pesel": ("44051401359", "44051401358"),
    "br_cpf": ("390.533.447-05", "390.533.447-06"),
    "tr_identity": ("17291716060", "17291716050"),
    "fr_nir": ("2 95 10 99 126 111 93", "2 95 10 99 126 111 94"),
    "kr_rrn": ("971013-9019902", "971013-9019903"),
    "de_idnr": ("36 574 261 809", "36 574 261 890"),
    "se_personnummer": ("880320-0016", "880320-0018"),
    "za_identity": ("7503305044089", "7503305044088"),
    "es_dni": ("54362315K", "54362315Z"),
    "it_codice_fiscale": ("RCCMNL83S18D969H", "RCCMNL83S18D969A"),
    "vin": ("1M8GDM9AXKP042788", "1M8GDM9AXKP042789"),
    "ipv4_public": ("8.8.8.8", "172.20.0.1"),
    "phone": ("(030) 901820-11", "0000 0000"),
    "phone_abroad": ("+1 415 555 2671", "+1 015 555 2671"),
}
POWER = {
    "luhn": (16, 0.1),
    "nl_bsn": (9, 0.091),
    "gb_nhs": (10, 0.091),
    "au_tfn": (9, 0.091),
    "br_cpf": (11, 0.01),
    "de_idnr": (11, 0.003),
}


@pytest.mark.parametrize("name", CHECKSUMS)
def test_a_published_number_fits_and_one_with_another_digit_does_not(name: str) -> None:
    """Each check knows its authority's own example."""
    right, wrong = KNOWN[name]
    assert CHECKSUMS[name](right)
    assert not CHECKSUMS[name](wrong)


@pytest.mark.parametrize("name", POWER)
def test_as_many_random_numbers_fit_as_the_sum_is_strong(name: str) -> None:
    """A check that lets through more than it should is a broken one."""
    digits, share = POWER[name]
    chance = random.Random(1)
    fitting = sum(CHECKSUMS[name](str(chance.randrange(10**digits)).zfill(digits)) for _ in range(8_000)) / 8_000
    assert share * 0.75 <= fitting <= share * 1.25 + 0.001


@pytest.mark.parametrize(
    ("country", "number"), [("Corsica", "2 84 05 2A 123 456 "), ("Upper Corsica", "1 84 05 2B 123 456 ")]
)
def test_corsicas_letters_count_as_numbers(country: str, number: str) -> None:
    """One of the ninety-seven keys fits."""
    check: Callable[[str], bool] = CHECKSUMS["fr_nir"]
    assert sum(check(f"{number}{key:02d}") for key in range(100)) == 1, country
