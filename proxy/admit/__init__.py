"""The admit stage: load shedding, rate limits, budgets and idempotent replay before a request is planned, and the queues after.

admission = await control.take(caller, parsed)  # RateLimited, with the headers to tell
permit = await queues.enter(target_id, item)  # NoRoom, or a place among the work in flight
"""
