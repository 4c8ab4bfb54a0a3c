"""The fault campaign: `make torture MINUTES=10`, or `python -m benchmarks.torture --help`.

Each module is one campaign, a generator that makes one trial per step:

- `kills`: signals at random moments over all agents and both loops; the resumed run must be equal to the bit.
- `storage`: every file call of the storage layer fails once with EIO, ENOSPC, EACCES, and is cut short.
- `injection`: the same for file calls of whole commands.
- `corruption`: every file of a run is damaged at random and on purpose, and read by every reader.
- `arguments`: random wrong arguments and values on the command line.
- `faulty`: environments that return nonsense, raise, exit, crash or hang.
- `jobs`: processes of a job that are killed, stopped, mismatched, or find their port taken.
- `readers`: commands that read a run while it trains.
- `growth`: memory and file descriptors of a long run.
"""
