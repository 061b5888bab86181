"""Building blocks of pages: templates, tables, charts, formats, words, navigation, scripts and styles."""
