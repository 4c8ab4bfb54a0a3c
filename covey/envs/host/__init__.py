"""Host environments: they run in Python or C++, outside of compiled programs."""
