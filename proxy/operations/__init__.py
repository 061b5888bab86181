"""What operators see: who is open, slow, full or burning, as one process knows it; and the live tail of decisions."""
