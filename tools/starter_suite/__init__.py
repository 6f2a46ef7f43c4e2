"""Makes ``policies/suites/shipped/starter.jsonl``, the 1,000 samples that come with forkgate.

=================  ====================================================================================
``templates/``     the tasks, by category: words with slots, and how answers are scored; all our own
``template``       one template → its instances, the same on every machine
``documents``      long texts with planted facts
``suite``          which instances make the suite, and its bytes
``found``          what running the model has found: ``found.jsonl``, ``rules.json``
``search``         runs the model to find that; ``run_model`` is the only module that needs torch
=================  ====================================================================================

``python -m tools.starter_suite`` writes the file, ``--check`` says whether it is what would be written,
``--counts`` prints the table of its categories, ``--search all`` runs the model again (a quarter of an hour
of one core), ``--search near_stop`` a part of it.
"""

from tools.starter_suite.suite import render

__all__ = ["render"]
