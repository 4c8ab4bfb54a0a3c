"""The environments that come with covey, one file each."""
