"""How covey writes and reads the files of a run: whole or not at all, and never through a symbolic link."""
