"""Top-ups: what is paid into prepaid budgets. They are only ever added; a mistake is taken back by a negative one."""

import re
from decimal import Decimal
from typing import Final
from uuid import uuid4

import msgspec

from cost.budgets.budget import MAX_LIMIT_NANOUSD, limit_from_usd
from cost.budgets.budget_errors import BadBudget

MAX_TOPUPS: Final = 1_000
"""Most top-ups of a budget that are listed."""
FIRST_TOPUP: Final = "first"
"""Id of the amount that a prepaid budget is made with."""
MAX_NOTE: Final = 200
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")


class Topup(msgspec.Struct, frozen=True):
    """An amount paid in, or taken back. Its id makes it happen once, however often it is sent."""

    topup_id: str
    amount_nanousd: int
    note: str = ""
    at_us: int = 0


def new_topup_id() -> str:
    """Return a new random id."""
    return f"topup_{uuid4().hex[:16]}"


def amount_from_usd(dollars: Decimal | str | int) -> int:
    """Return a signed dollar amount in nano-dollars. Raises BadBudget."""
    text = str(dollars).strip()
    amount = limit_from_usd(text.removeprefix("-"))
    return -amount if text.startswith("-") else amount


def check_topup(topup: Topup) -> None:
    """Raise BadBudget for a top-up that cannot be."""
    if not _ID.match(topup.topup_id):
        raise BadBudget("a top-up's id has 1 to 64 letters, digits, `_`, `.` or `-`")
    if topup.amount_nanousd == 0 or abs(topup.amount_nanousd) > MAX_LIMIT_NANOUSD:
        raise BadBudget("a top-up is an amount of dollars, not 0 and at most a billion; a negative one takes back")
    if len(topup.note) > MAX_NOTE or (topup.note and not topup.note.isprintable()):
        raise BadBudget(f"a top-up's note has at most {MAX_NOTE} printable characters")
