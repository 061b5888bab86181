"""Learning from own traffic: stored requests and verdicts, and the tunings fitted to them."""
