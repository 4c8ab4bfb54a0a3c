"""The page of a run: what the run folder holds, as one HTML file."""
