"""The end of a month: what must be settled before it is closed, its figures, and the statement of it."""
