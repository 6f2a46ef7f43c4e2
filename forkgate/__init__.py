"""The front door: what a person starts, asks and reads. It wires the rest and decides nothing itself.

- ``cli``: the command line. Starts processes, or asks a running judge through ``admin``'s unix socket.
- ``config``: the file, made of each package's own section, with every mistake in it named at once.
- ``supervisor``: owns the listening sockets; starts, watches and ends the edge workers and the judge.
- ``judge``: the process behind the edges: link server, mirror, comparator, policies and evidence in one event
  loop.
- ``fleet``: the engines behind every pool, opened and probed; for the judge, and for checks without one.
- ``state``: what must outlive a process: rollback latch, last route table, locks.
- ``admin``, ``telemetry``: the judge as tools see it.
- ``demo``: the main job on real models, as a story that checks itself.

Nothing is imported here, so that ``forkgate --help`` opens at once and an edge worker loads only itself.
"""
