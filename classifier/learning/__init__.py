"""Learning from own traffic: what is kept of it, and what is fitted to it."""
