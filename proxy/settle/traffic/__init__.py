"""Traffic: the answers of a process in each minute and their latency; counted in each worker, kept by the control
plane.
"""
