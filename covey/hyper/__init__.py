"""Hyper-parameters: search ranges, search spaces, schedules, and access by name."""
