"""A worker's reports on itself: its readiness, and its state for pages and APIs."""
