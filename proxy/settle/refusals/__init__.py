"""Refusals: who was refused, of which model and why; counted in each worker, kept by the control plane."""
