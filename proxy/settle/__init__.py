"""The settle stage: a finished request gives back its limits, and its outcome goes to the observers.

settlement.settle(context, now, shadow)  # never raises
"""
