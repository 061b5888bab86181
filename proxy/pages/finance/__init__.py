"""The pages of finance: the claim, the month, who spent what, prices, and files to take along."""
