"""Pages that show runs: the report, and the live page."""
