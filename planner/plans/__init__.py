"""Launch plans: a model's memory and speed on given GPUs, the cost, and the files to start it."""
