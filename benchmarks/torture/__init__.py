"""The fault campaign: `make torture MINUTES=10`, or `python -m benchmarks.torture --help`.

Each module is one campaign, a generator of trials:

- `kills`: signals at random moments, for all agents and both loops; the resumed run must be identical, bit for bit.
- `storage`: every file call of the storage layer fails once with EIO, ENOSPC and EACCES, and is once cut short.
- `injection`: the same for the file calls of whole commands.
- `corruption`: every file of a run is damaged in many ways, and read by every reader.
- `arguments`: random invalid arguments and values on the command line.
- `faulty`: environments that return invalid values, raise, exit, crash or hang.
- `jobs`: processes of a job that are killed, stopped or started with different options, or whose port is in use.
- `readers`: commands that read a run while it trains.
- `growth`: memory and file descriptors of a long run.
"""
