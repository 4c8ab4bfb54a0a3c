"""Figures and films of runs. They take data, not folders: the caller reads the files of a run."""
