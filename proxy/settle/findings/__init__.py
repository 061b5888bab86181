"""What the guard found, as counts; counted in each process, kept by the control plane."""
