"""Learning from own traffic while serving: shadow evaluation, tunings that were accepted, and what must be forgotten."""
