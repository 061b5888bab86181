"""What must not leave: which rules hold, what they found, and a dry run of them."""
