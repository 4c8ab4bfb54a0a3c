"""Writes and reads the files of a run: complete or not at all, and never through a symbolic link."""
