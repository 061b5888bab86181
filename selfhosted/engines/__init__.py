"""Engine statistics: scraping and parsing."""
