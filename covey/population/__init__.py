"""Populations that are tuned while they learn. Nothing here knows an algorithm or a hyper-parameter by name."""
