"""The checksums of numbers that name a person, an account or a thing, by the name that the table of kinds calls them.

Each takes the value as it was written, blanks and dashes included, and says whether it can be one.
"""

from collections.abc import Callable, Iterable
from typing import Final

_VERHOEFF_PRODUCT: Final = (
    "0123456789", "1234067895", "2340178956", "3401289567", "4012395678",
    "5987604321", "6598710432", "7659821043", "8765932104", "9876543210",
)  # fmt: skip
_VERHOEFF_PLACE: Final = (
    "0123456789", "1576283094", "5803796142", "8916043527", "9453126870", "4286573901", "2793806415", "7046913258",
)  # fmt: skip
_ZERO: Final = ord("0")
_NO_DIGITS: Final = bytes(byte for byte in range(256) if not 0x30 <= byte <= 0x39)  # noqa: PLR2004
_DNI_LETTERS: Final = "TRWAGMYFPDXBNJZSQVHLCKE"
_CODICE_ODD: Final = dict(
    zip(
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16,
         10, 22, 25, 24, 23),
        strict=True,
    )
)  # fmt: skip
_VIN_VALUES: Final = dict(
    zip("0123456789ABCDEFGHJKLMNPRSTUVWXYZ", map(int, "012345678912345678123457923456789"), strict=True)
)
_VIN_WEIGHTS: Final = (8, 7, 6, 5, 4, 3, 2, 10, 0, 9, 8, 7, 6, 5, 4, 3, 2)
_CARD_CHARS: Final = range(13, 20)
_IBAN_CHARS: Final = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27, "BR": 29,
    "BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28, "EE": 20, "EG": 29,
    "ES": 24, "FI": 18, "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28,
    "HN": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20,
    "LB": 28, "LC": 32, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19,
    "MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28, "NL": 18, "NO": 15, "OM": 23, "PK": 24, "PL": 28, "PS": 29,
    "PT": 25, "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24, "SC": 31, "SD": 18, "SE": 24, "SI": 19, "SK": 24,
    "SM": 27, "SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20,
    "YE": 30,
}  # fmt: skip
"""The length of an account number by country: SWIFT's registry, release 99 (2024-12)."""


def _bare(value: str) -> str:
    return "".join(char for char in value.upper() if char.isascii() and char.isalnum())


def _digits(value: str) -> list[int]:
    return [byte - _ZERO for byte in value.encode(errors="replace").translate(None, _NO_DIGITS)]


def _weighted(digits: Iterable[int], weights: Iterable[int]) -> int:
    return sum(digit * weight for digit, weight in zip(digits, weights, strict=False))


def _alike(digits: list[int]) -> bool:
    return len(set(digits)) <= 1


def luhn(value: str) -> bool:
    """Return whether the digits fit Luhn's sum, which one of ten random numbers does."""
    return _luhn(_digits(value))


def _luhn(digits: list[int]) -> bool:
    doubled = (digit * 2 - 9 * (digit > 4) for digit in digits[-2::-2])  # noqa: PLR2004  Twice five has two digits.
    return bool(digits) and (sum(digits[::-2]) + sum(doubled)) % 10 == 0


def card(value: str) -> bool:
    """Return whether it can be a payment card's number: of a length that is issued, not one digit repeated."""
    digits = _digits(value)
    if len(digits) not in _CARD_CHARS or _alike(digits):
        return False
    return _is_issued("".join(map(str, digits[:4]))) and _luhn(digits)


def _is_issued(first: str) -> bool:
    mastercard = "2221" <= first <= "2720" or "50" <= first[:2] <= "58"
    return first[0] in "46" or mastercard or first[:2] in {"30", "34", "35", "36", "37", "38", "39"}


def iban(value: str) -> bool:
    """Return whether it is an account number of a country's own length whose rest modulo 97 is one."""
    bare = _bare(value)
    if _IBAN_CHARS.get(bare[:2]) != len(bare) or not bare[2:4].isdigit():
        return False
    return int("".join(str(int(char, 36)) for char in bare[4:] + bare[:4])) % 97 == 1


def us_ssn(value: str) -> bool:
    """Return whether the number can have been given out: it has no checksum, only numbers that nobody has."""
    bare = _bare(value)
    return bare[:3] not in {"000", "666"} and bare[0] != "9" and bare[3:5] != "00" and bare[5:] != "0000"


def us_routing(value: str) -> bool:
    """Return whether it is a bank's routing number of a region that there is."""
    digits = _digits(value)
    region = digits[0] * 10 + digits[1]
    known = 1 <= region <= 12 or 21 <= region <= 32 or 61 <= region <= 72 or region == 80  # noqa: PLR2004
    return known and _weighted(digits, (3, 7, 1) * 3) % 10 == 0


def nl_bsn(value: str) -> bool:
    """Return whether it is a Dutch citizen's number."""
    digits = _digits(value)
    return not _alike(digits) and (_weighted(digits, range(9, 1, -1)) - digits[8]) % 11 == 0


def gb_nhs(value: str) -> bool:
    """Return whether it is a patient's number of the British health service."""
    digits = _digits(value)
    return not _alike(digits) and -_weighted(digits, range(10, 1, -1)) % 11 == digits[9]


def au_tfn(value: str) -> bool:
    """Return whether it is an Australian tax file number."""
    digits = _digits(value)
    return not _alike(digits) and _weighted(digits, (1, 4, 3, 7, 5, 8, 6, 9, 10)) % 11 == 0


def ca_sin(value: str) -> bool:
    """Return whether it is a Canadian social insurance number."""
    digits = _digits(value)
    return digits[0] not in {0, 8} and not _alike(digits) and _luhn(digits)


def in_aadhaar(value: str) -> bool:
    """Return whether it is an Indian Aadhaar number: Verhoeff's sum, and no number reads the same backwards."""
    digits = _digits(value)
    check = "0"
    for place, digit in enumerate(reversed(digits)):
        check = _VERHOEFF_PRODUCT[int(check)][int(_VERHOEFF_PLACE[place % 8][digit])]
    return check == "0" and digits[0] > 1 and digits != digits[::-1]


def pl_pesel(value: str) -> bool:
    """Return whether it is a Polish citizen's number whose birthday there is."""
    digits = _digits(value)
    month, day = (digits[2] % 2) * 10 + digits[3], digits[4] * 10 + digits[5]
    return _is_day(month, day) and _weighted(digits, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1)) % 10 == 0


def br_cpf(value: str) -> bool:
    """Return whether it is a Brazilian taxpayer's number."""
    digits = _digits(value)
    first = _weighted(digits, range(10, 1, -1)) * 10 % 11 % 10
    second = _weighted(digits[:10], range(11, 1, -1)) * 10 % 11 % 10
    return not _alike(digits) and digits[9:] == [first, second]


def tr_identity(value: str) -> bool:
    """Return whether it is a Turkish citizen's number."""
    digits = _digits(value)
    tenth = (7 * sum(digits[0:9:2]) - sum(digits[1:8:2])) % 10
    return digits[0] != 0 and digits[9] == tenth and digits[10] == sum(digits[:10]) % 10


def fr_nir(value: str) -> bool:
    """Return whether it is a French social security number, Corsican ones (2A, 2B) included."""
    bare = _bare(value)
    number = bare[:13].replace("2A", "19", 1) if bare[5:7] == "2A" else bare[:13]
    number = number.replace("2B", "18", 1) if bare[5:7] == "2B" else number
    return number.isdigit() and 97 - int(number) % 97 == int(bare[13:])


def kr_rrn(value: str) -> bool:
    """Return whether it is a South Korean resident's number whose birthday there is."""
    digits = _digits(value)
    month, day = digits[2] * 10 + digits[3], digits[4] * 10 + digits[5]
    check = (11 - _weighted(digits, (2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5)) % 11) % 10
    return _is_day(month, day) and check == digits[12]


def de_idnr(value: str) -> bool:
    """Return whether it is a German tax identification number: one digit comes twice or thrice, ISO 7064 mod 11, 10."""
    digits = _digits(value)
    counts = sorted((digits[:10].count(digit) for digit in set(digits[:10])), reverse=True)
    if digits[0] == 0 or counts[0] not in {2, 3} or counts[1] != 1:
        return False
    product = 10
    for digit in digits[:10]:
        product = ((digit + product) % 10 or 10) * 2 % 11
    return (11 - product) % 10 == digits[10]


def se_personnummer(value: str) -> bool:
    """Return whether it is a Swedish citizen's number, written with or without the century."""
    digits = _digits(value)[-10:]
    month, day = digits[2] * 10 + digits[3], digits[4] * 10 + digits[5]
    return _is_day(month, day % 60 if day > 60 else day) and _luhn(digits)  # noqa: PLR2004  Who came later: + 60.


def za_identity(value: str) -> bool:
    """Return whether it is a South African's number whose birthday there is."""
    digits = _digits(value)
    month, day = digits[2] * 10 + digits[3], digits[4] * 10 + digits[5]
    return _is_day(month, day) and digits[10] in {0, 1} and _luhn(digits)


def es_dni(value: str) -> bool:
    """Return whether it is a Spaniard's number, or with X, Y or Z in front that of a foreigner in Spain."""
    bare = _bare(value)
    number = str("XYZ".find(bare[0])) + bare[1:-1] if bare[0] in "XYZ" else bare[:-1]
    return number.isdigit() and _DNI_LETTERS[int(number) % 23] == bare[-1]


def it_codice_fiscale(value: str) -> bool:
    """Return whether it is an Italian tax code, also one where letters stand for digits that two people would share."""
    bare = _bare(value)
    even = sum(int(char) if char.isdigit() else ord(char) - 65 for char in bare[1:15:2])
    return chr(65 + (even + sum(_CODICE_ODD[char] for char in bare[0:15:2])) % 26) == bare[15]


def vin(value: str) -> bool:
    """Return whether it is a vehicle's number with its check digit, as America and China write them."""
    bare = _bare(value)
    check = _weighted((_VIN_VALUES.get(char, 0) for char in bare), _VIN_WEIGHTS) % 11
    return bare[8] == "0123456789X"[check] and len(set(bare)) > 4  # noqa: PLR2004


def ipv4_public(value: str) -> bool:
    """Return whether it is an address of the internet: not of a house's own network, a test or a version's number."""
    parts = [int(part) for part in value.split(".")]
    if max(parts) > 255:  # noqa: PLR2004
        return False
    first, second = parts[0], parts[1]
    own = first in {0, 10, 127} or first >= 224 or (first, second) in {(192, 168), (169, 254)}  # noqa: PLR2004
    shared = (first == 172 and 16 <= second <= 31) or (first == 100 and 64 <= second <= 127)  # noqa: PLR2004
    return not (own or shared or parts[:3] in ([192, 0, 2], [198, 51, 100], [203, 0, 113]))


def phone(value: str) -> bool:
    """Return whether it has as many digits as a telephone number has, and not one digit only."""
    digits = _digits(value)
    return 8 <= len(digits) <= 15 and len(set(digits[2:])) > 1  # noqa: PLR2004  E.164's bounds.


def phone_abroad(value: str) -> bool:
    """Return whether it can be a number with its country in front; North America's and Russia's have their own form."""
    digits = _digits(value)
    if digits[0] == 0 or not phone(value):
        return False
    if digits[0] == 1:
        return len(digits) == 11 and digits[1] > 1 and digits[4] > 1  # noqa: PLR2004
    return len(digits) == 11 if digits[0] == 7 else len(digits) >= 9  # noqa: PLR2004


def _is_day(month: int, day: int) -> bool:
    return 1 <= month <= 12 and 1 <= day <= 31  # noqa: PLR2004


CHECKSUMS: Final[dict[str, Callable[[str], bool]]] = {
    check.__name__: check
    for check in (
        luhn, card, iban, us_ssn, us_routing, nl_bsn, gb_nhs, au_tfn, ca_sin, in_aadhaar, pl_pesel, br_cpf, tr_identity,
        fr_nir, kr_rrn, de_idnr, se_personnummer, za_identity, es_dni, it_codice_fiscale, vin, ipv4_public, phone,
        phone_abroad,
    )
}  # fmt: skip
"""Each check by its name. All of them take what the pattern beside which they stand in the table lets through."""
