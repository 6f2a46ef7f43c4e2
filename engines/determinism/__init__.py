"""Does a model run the same way twice? PyTorch's strict settings, and what stands in their way.

::

    python -m engines.determinism --model DIR        (``forkgate determinism audit``)
        │
        ├ strict     the settings, put on and read back; seeds of torch, numpy and random
        ├ operators  every operator without a deterministic implementation that a run meets
        ├ workload   what is run: the reference engine's own steps, every sampling processor among them
        ├ repeat     the same request again, alone and in changed batches: logits bit by bit
        ├ cost       tokens/s and latency with and without, by turns in one run
        └ audit      all of it, one report

``forkgate engine --deterministic`` puts the same settings on, and serves only what passes the same audit
(:mod:`engines.reference.deterministic`). torch is imported here; nothing but the two commands imports this.
"""
