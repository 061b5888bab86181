"""What finance reads of the books."""
