"""Weighing a model that nobody has outcomes of: questions whose answers a program can check, and the row that fits them."""
