"""Policies: from evidence to verdicts, and from verdicts to where traffic goes. Pure.

No socket, clock, file, environment variable or event loop in here: time, text and randomness arrive as
arguments, and what should happen is returned as values that the judge carries out.

==============  =====================================================================================
``routes``      the route table that edges obey; the one module that ``proxy`` may import
``tables``      configuration + rollout states → route table
``policy``      the policy file: level, alpha, gates, what to do on a breach; frozen, with a digest
``suite_section`` its ``suites:``, as values
``levels``      one alpha, split over everything that may roll back
``yaml_text``   YAML text → plain values, duplicate keys refused
``strict_json`` the same for JSON
``gates/``      one small file a gate: frozen limits, explicit state, fold, verdict
``suites/``     sample suites: frozen questions, read and checked whole
``scoring/``    what an answer is worth: pure scorers, refusal rules
``verdict``     what a gate says
``rollout/``    the state machine of one migration: ``step(state, event) -> (state, effects)``
``shipped/``    policy files that come with the package
==============  =====================================================================================

Evidence enters by ``rollout.step``; each gate folds it into its own state and is asked for a verdict; a
failing one makes effects (latch and flip, publish a table, hold, log). State is one serialisable value with
the number of events it has seen, so that a rollout can move to another judge and a verdict can be computed
again.

This module imports nothing: an edge loads ``policies.routes`` and must stay light.
"""
