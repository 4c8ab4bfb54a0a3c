"""Figures and films of runs."""
