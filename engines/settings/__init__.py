"""Launch settings with which an engine repeats itself, for each engine and level, and whether they are met.

::

    values ── what a row is: flag, variable, key of a file, or what a client must send
    vllm, sglang, tensorrt_llm, llamacpp, reference ── the rows, each looked up in the engine's own source
    choose ── engine, version, level → the rows that count, or that nothing is verified for that version
    check  ── the rows against a running engine: met, not met, cannot be known
    text   ── a shell script, a table

A row is never written from memory: it names the file of the engine's version in which its flag stands, and
the reason and known cost come from there or from a measurement that is named. No torch here.
"""
