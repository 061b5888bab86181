"""The providers' own books against ours: what they say they sold, what we say we bought, and the difference posted."""
