"""Requests that ill targets hurt: counted in each worker, kept by the control plane, read by incidents."""
