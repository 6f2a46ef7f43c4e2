"""The reference engine: one model, torch and transformers, in a process of its own.

Exact control over precision, batch and randomness, and nothing clever: no prefix cache, no speculation, no
custom kernels. What it answers is what the model computes.

::

    HTTP ──▶ server ──▶ requests    decode, validate, tokens and parameters
                │
                ├──▶ batch          a thread that runs one forward pass after another
                │      ├ rows       key/value memory: one row a request, no padding
                │      ├ model      the network: tokens in, logits out
                │      ├ sampling   logits → tokens, each row by its own generator
                │      └ text       token IDs → text, stop strings
                └──▶ answers        OpenAI's JSON

``python -m engines.reference --model DIR`` starts it (``process`` serves until told to stop). ``client`` is
its adapter and ``options`` what it is started with; those two import no torch. ``convert`` makes the demo's
model from a GGUF file.
"""
