"""The parts of the batch tier that routes use."""

from typing import NamedTuple

from proxy.batch.batch_config import BatchSection
from proxy.batch.cost_bound import CostBounds
from proxy.batch.files import FileStore
from proxy.batch.store import BatchStore
from proxy.shared.database_clock import DatabaseTime


class BatchTier(NamedTuple):
    """Files and batches of one gateway. Its lines may be answered in another process."""

    section: BatchSection
    time: DatabaseTime
    files: FileStore
    batches: BatchStore
    money: CostBounds
