"""Launch plans: what a model needs, what GPUs give, how fast that is, what it costs, and how it is started."""
