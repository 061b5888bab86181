"""What callers say of answers."""
