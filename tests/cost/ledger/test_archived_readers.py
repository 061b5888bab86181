"""Whoever reads entries says what becomes of it where their month stands in files: here, so that no new reader is forgotten."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[3]
FOLDERS: Final = [
    "accounts",
    "api",
    "classifier",
    "config",
    "cost",
    "dashboards",
    "gateway",
    "guard",
    "planner",
    "providers",
    "proxy",
    "selfhosted",
    "settings",
    "weighbridge",
]
_NAMES: Final = {
    "cost.tables": {"LedgerEntry"},
    "cost.ledger.rows": {"ALL", "read"},
    "cost.ledger.rollups": {"counted", "ledger_amounts", "ledger_sums", "month_sums", "quarter_sums", "spend_sums"},
}
_TABLE: Final = "ledger_entry"

SAY: Final = {
    "api/erasure/person.py": "archived months keep the end user, which docs/audit.md and the command say",
    "cost/events/outbox.py": "days cannot be told again",
    "cost/ledger/rebuild.py": "days cannot be rebuilt",
    "cost/ledger/verify.py": "reads the files, or compares their totals",
    "cost/price_book/correction.py": "days cannot be corrected",
    "cost/reconcile/ledger_side.py": "days cannot be reconciled",
    "cost/reports/attempts.py": "/spend/logs and minutes refuse",
    "cost/reports/minutes.py": "minutes refuse",
    "cost/reports/recent.py": "pages name the months that they lack; end users are known by their roll-up",
    "cost/reports/usage.py": "roll-ups answer, or it refuses",
    "cost/savings/savings_reader.py": "the arms end there",
}
"""They say so themselves, or refuse."""
SAID_BY: Final = {
    "cost/price_book/baseline_correction.py": "cost/price_book/correction.py",
    "cost/reports/end_user_figures.py": "dashboards/end_users/page.py",
    "proxy/batch/served.py": "dashboards/batch/page.py",
}
"""Those who call them do."""
STAYS: Final = {
    "cost/budgets/grants.py": "open reserves",
    "cost/fleet/cost_adjustment.py": "late entries; sums are of roll-ups",
    "cost/ledger/journal_places.py": "what was written a moment ago",
    "cost/ledger/orphan_reaper.py": "open reserves, and attempts closed for a lost host",
    "cost/ledger/postings.py": "postings",
    "cost/ledger/rolled_up.py": "hours within which a day begins",
    "gateway/from_litellm/history.py": "postings",
}
"""They read what is never archived."""
RECENT: Final = {
    "api/live/drift.py": "29 days",
    "api/live/newest.py": "the newest",
    "cost/reports/latency.py": "the newest 2,000",
    "dashboards/alerts/measuring.py": "an alert's window, a day at most",
    "gateway/demo/run.py": "the demo's own",
    "selfhosted/rollouts/reading.py": "31 days",
}
"""They read no further back than what is kept: a whole month at least, beside the present one."""
LEDGER: Final = {
    "cost/ledger/archive_files.py": "the archive",
    "cost/ledger/archived.py": "the archive",
    "cost/ledger/archiving.py": "the archive",
    "cost/ledger/rollups.py": "expressions for readers",
    "cost/ledger/rows.py": "the conversion of rows",
    "cost/ledger/store.py": "the writer, which refuses what may be in a file",
    "cost/tables.py": "the table",
    "gateway/commands/ledger.py": "a hint",
}
"""The ledger itself."""


def _readers() -> Iterator[str]:
    for folder in FOLDERS:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            name = str(path.relative_to(REPOSITORY))
            if not name.startswith("gateway/migrations/") and _reads(ast.parse(path.read_text())):
                yield name


def _reads(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            if _NAMES.get(node.module or "", set()) & {each.name for each in node.names}:
                return True
        elif (isinstance(node, ast.Constant) and isinstance(node.value, str) and _TABLE in node.value.split()) or (
            isinstance(node, ast.ClassDef) and node.name == "LedgerEntry"
        ):
            return True
    return False


def test_each_reader_of_entries_is_known() -> None:
    """A new one stands here with what it does about months in files."""
    listed = [*SAY, *SAID_BY, *STAYS, *RECENT, *LEDGER]
    assert sorted(listed) == sorted(set(listed))
    found = set(_readers())
    assert sorted(found - set(listed)) == [], "say what they do where a month is in files"
    assert sorted({*SAY, *SAID_BY, *STAYS, *RECENT} - found) == [], "they read entries no more"


def test_those_who_say_so_ask_for_it() -> None:
    """Each of them, or its caller, asks what is archived."""
    for name in (*(set(SAY) - {"api/erasure/person.py"}), *SAID_BY.values()):
        assert "archived" in (REPOSITORY / name).read_text(), name
