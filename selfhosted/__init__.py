"""Self-hosted inference: pools of engine replicas, their health, balancing and scaling.

A conversation has the same first replicas in every process, without communication:

    ring = Ring(("llama-1", "llama-2", "llama-3"))  # selfhosted.balance.ring
    home, *others = ring.first(root_of(chat))

Engines of a configured pool run on this machine by:

    weighbridge selfhosted run llama --config weighbridge.yaml
"""
