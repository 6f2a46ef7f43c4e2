"""What it takes to notice that a model draws its answers otherwise, on real answers under known changes.

``python -m bench.sampling [--quick] [--json]``; ``bench/README.md`` says how to read it.

- :mod:`~bench.sampling.make`: the answers, once, by a real model; :mod:`~bench.sampling.prompts`: to what;
  :mod:`~bench.sampling.data`: as they are stored
- :mod:`~bench.sampling.resample`: streams of comparisons out of them
- :mod:`~bench.sampling.ours`: the gates' own tests on such streams
- :mod:`~bench.sampling.fixed` and :mod:`~bench.sampling.power`: the peers, which look once;
  :mod:`~bench.sampling.equality`: the published package, asked whether it agrees
"""
