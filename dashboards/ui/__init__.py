"""What pages are drawn with: templates, tables, charts, formats, words, navigation, scripts and styles."""
