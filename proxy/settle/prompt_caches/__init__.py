"""What providers' prompt caches gave and what was lost of them: why, how many tokens, and for how much money."""
