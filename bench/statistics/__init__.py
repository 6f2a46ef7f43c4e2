"""What is claimed of the sequential tests, shown by simulation from one seed.

``python -m bench.statistics [--quick] [--json]`` prints a table of properties, each with the number found,
the bar it is held to, and whether it holds. Exit code 0: all hold. 1: one does not. 4: one could not be
measured.

- :mod:`~bench.statistics.walks`: many e-processes at once in numpy; :mod:`~bench.statistics.streams`: what
  they watch
- :mod:`~bench.statistics.false_alarms`: properties 1 and 2; :mod:`~bench.statistics.speed`: 3, 4 and 5;
  :mod:`~bench.statistics.labels`: 6; :mod:`~bench.statistics.replay`: 7; :mod:`~bench.statistics.sampling`: 8
- :mod:`~bench.statistics.findings`: how a finding is told

The walks take each test's own factors and weights from ``comparator.sequential``, and every simulation asks
the core itself again at the counts where a walk stopped: a walk that differs from the core is an error, not a
finding. Results depend on the seed and on ``--quick`` alone, not on the number of workers.
"""
