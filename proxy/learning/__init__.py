"""Learning from own traffic: shadow evaluation, accepted tunings, and data retention."""
