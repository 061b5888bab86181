"""Traffic: what a process answered in each minute and how soon; counted in each worker, kept by the control plane."""
