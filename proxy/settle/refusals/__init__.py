"""Refusals by caller, model and reason; counted in each worker, kept by the control plane."""
