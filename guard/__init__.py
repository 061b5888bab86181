"""What must not leave: what is found in texts, and what is done with it."""
