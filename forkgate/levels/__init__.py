"""Which of the four levels two environments can reach, which they have shown, what stands in the way.

==============  ===========================================================================================
``sources``     what a person names (a folder, record files, a bundle, a URL, a pool) → two sides and evidence
``evidence``    comparisons → how many prompts were answered equally, what forked, what was left out
``gates``       verdicts of a policy's gates: stored, or computed from the comparisons at hand
``in_the_way``  what evidence shows against the two, and what it lacks; pure
``standing``    records, evidence and verdicts → four answers, and what stands in the way; pure
``pairs``       every pair of some sides, by one reading of the evidence
``matrix``      more than two environments as a table; pure
``words``       all of it for a terminal; pure
==============  ===========================================================================================

What two records say by themselves is :mod:`engines.identity.levels`. docs/levels.md has the rules in words.
"""
