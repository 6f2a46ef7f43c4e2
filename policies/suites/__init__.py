"""Sample suites: frozen questions, asked of both arms at the start of each stage. Pure.

A suite is JSON Lines, one :class:`~policies.suites.sample.Sample` a line, frozen by the SHA-256 of its
bytes. It is asked in several passes an arm; what is averaged inside a sample is run-to-run noise, so that an
interval decides about *this* set of samples and nothing wider (the gates' estimand ``suite``).
"""
