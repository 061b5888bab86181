"""The `cost` section of the configuration."""

from decimal import Decimal
from pathlib import Path
from typing import Literal

from pydantic import Field

from cost.budgets.budgets_config import BudgetsConfig
from cost.currency import ShownCurrency
from cost.end_users import LEAST_KEPT_DAYS
from cost.fleet.pool_config import Pools, UsdPerHour
from cost.ledger.archive_config import ArchiveConfig
from cost.price_book.book import Unpriced
from cost.reports.report_config import ReportSection
from settings.types import Finite, Kept, Reloadable, Section


class CostSection(Section):
    """Ledger, prices, budgets, reports and savings."""

    reference_target: Reloadable[str | None] = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="The model whose price makes the baseline; without one no savings are told.",
    )
    hosted: Reloadable[dict[str, str]] = Field(
        default_factory=dict,
        max_length=256,
        description="For own targets: the target that offers the same weights hosted by others, a further "
        "comparison for savings.",
    )
    savings_target: Reloadable[Decimal] = Field(
        default=Decimal("0.40"),
        gt=0,
        lt=1,
        allow_inf_nan=False,
        json_schema_extra={"unit": "number"},
        description="The share of the baseline that is to be saved.",
    )
    holdout_share: Reloadable[Finite] = Field(
        default=0.0,
        ge=0,
        le=0.5,
        description="Share of `auto` requests sent to the baseline model at random to measure savings; as many "
        "more are their control.",
    )
    gateway_usd_per_hour: Reloadable[UsdPerHour] = Field(
        default=Decimal(0),
        description="Cost of the gateway's own machines an hour; lowers savings.",
    )
    pools: Reloadable[Pools] = Field(
        default=(), description="Our own GPUs, what they cost while they are up, and how their bill is shared."
    )
    unpriced: Reloadable[Unpriced] = Field(
        default="refuse",
        description="Requests for a model without a known price are refused, or booked as unpriced. `auto` "
        "never chooses such a model.",
    )
    shown_currency: Reloadable[ShownCurrency] = Field(
        default_factory=dict,
        max_length=1,
        description="A second currency that pages and CSV files show amounts in: its code and rate. Booked are US dollars.",
    )
    prices_poll_s: Finite = Field(
        default=15.0,
        ge=0.1,
        le=3_600.0,
        description="How often to look for changed prices.",
    )
    report: ReportSection | None = Field(
        default=None, description="A daily report for each team; none is delivered when not set."
    )
    end_user_days: Reloadable[int] = Field(
        default=LEAST_KEPT_DAYS,
        ge=LEAST_KEPT_DAYS,
        le=36_500,
        description="How long what each end user spent is kept in the roll-ups; the ledger keeps it. What a lifetime or prepaid "
        "budget counts stays.",
    )
    archive: Reloadable[ArchiveConfig | None] = Field(
        default=None, description="Months of the ledger that go into files by themselves; none do when not set."
    )
    budgets: BudgetsConfig = Field(default=BudgetsConfig(), description="How budgets are kept.")
    journal_dir: Kept[Path] = Field(
        default=Path("var/journal"), description="Where entries are kept until the database has them. One a machine."
    )
    journal_sync: Literal["process", "power"] = Field(
        default="process",
        description="What an entry survives: `process` a kill -9, `power` also a loss of power (slower).",
    )
    max_journal_bytes: int = Field(
        default=128 * 1024 * 1024,
        ge=64 * 1024,
        le=16 * 1024**3,
        description="A journal this far behind refuses new requests; running ones are booked.",
    )
    lost_host_after_s: int = Field(
        default=3_600,
        ge=120,
        le=30 * 86_400,
        description="After this silence of a process whose journal is elsewhere, its open attempts are booked "
        "at an estimate.",
    )
    drain_batch: int = Field(default=1_000, ge=1, le=10_000, description="Entries written to the database at once.")
    drain_interval_s: float = Field(
        default=0.15,
        gt=0,
        le=60.0,
        description="How long entries wait for a fuller batch; four times as long under load.",
    )
