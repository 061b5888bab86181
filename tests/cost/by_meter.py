"""Amounts by meter, so that a test names those that it is about and a new meter changes none of them."""

from cost.meters import METER_NAMES, Meters


def by_meter(**amounts: int) -> Meters:
    """Amounts in the table's order; 0 for what is not named."""
    assert amounts.keys() <= set(METER_NAMES)
    return tuple(amounts.get(name, 0) for name in METER_NAMES)
