"""The judge: one asyncio process in which everything slow happens.

============== =======================================================================================
``process``    builds the parts, starts and stops them in order; ``python -m forkgate.judge``
``judge``      what the link, the mirror and everything under way report to
``conduct``    what came of an event, obeyed and journalled in the right order
``actor``      carries out what policies ask for, in order
``words``      what a person says
``in_the_way`` what a step waits for beside what its rollout's state knows
``desk``       every rollout's state
``starts``     the check or the suites that a stage starts with, under way
``tally``      what a rollout has seen, counted for people
``forks``      every fork's class, against the noise floor of its controls
``clusters``   which prompts a rollout has met already
``engine_watch`` engines sampled, and noticed when they are others than before
``publisher``  route tables, epochs, rollbacks: latch, publish, wait for every edge
``latchkeeper`` the latch, written on a thread of its own
``writer``     the evidence store, written on a thread of its own
``checkpoint`` what the next judge must know after a ``kill -9``
``journal``    a rollout's events and states as the store keeps them, and back
``recompute``  every stored verdict again, from the store's file alone
``mirrors``    the mirror, set up from the configuration
``replay``     a stored pair run again
``views``      all of it as plain data, for the admin API
``rollout_view`` one rollout of it
============== =======================================================================================

A breach travels token → ``judge.fork_seen`` → ``desk`` → ``publisher.roll_back`` without waiting for
anything but the latch's disk, and for that a bounded time only.
"""
