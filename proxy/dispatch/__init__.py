"""The dispatch stage: a routed request becomes an answer that has begun.

The `Dispatcher` walks along the plan's candidates, asks its `AttemptPolicy` what to start and when to give up, and its
`LoadBalancer` which deployment is next; an `Attempt` is one call of one deployment, from its reservation to its settlement.

    committed = await dispatcher.dispatch(routed, attempts, waits)
    committed.events  # read so far; the rest comes from committed.stream
"""
