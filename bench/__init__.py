"""How much forkgate costs and how fast it is, beside its peers on the same machine in the same minutes.

- :mod:`bench.payloads` what travels; :mod:`bench.load` sends it and checks every answer; :mod:`bench.stub`
  answers it; :mod:`bench.engine_stub` is an upstream that speaks vLLM's protocol
- :mod:`bench.peers` the proxies under test as pinned processes; :mod:`bench.machine` cores, CPU, memory
- :mod:`bench.stats` medians and their intervals; :mod:`bench.report` the figures, their bars, the output
- :mod:`bench.cases` one module a question

``make bench`` runs it; README.md beside this file says what each figure means and what it does not.
"""
