"""Environments that run on the host, outside of compiled programs."""
