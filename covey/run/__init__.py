"""Runs: folders, configuration, checkpoints, metrics, progress, pictures. The clock, files and terminal live here."""
