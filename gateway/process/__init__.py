"""Processes of a gateway: the supervisor, the control plane and the workers, each with what it runs."""
