"""The link between edges and their judge: captures and live records up, route tables down.

::

    edge worker                                              judge
    EdgeLink ── Outbox (queue, ledger, live records)         LinkServer ── JudgeLedger, Flip
       ├─ Submit: one batch in flight, sent until taken ───▶   └─▶ LinkSink.capture, live
       └─ Watch:  table swapped in, then acknowledged   ◀───  publish(table) → Flip
    supervisor
    TableWatcher ── keeps tables, reports dead edges   ───▶  EdgeGone → ledger

``channel`` holds what both ends agree on, ``follow`` the stream that tables come down on, ``pb`` the
generated code. This file imports nothing: the edge takes :mod:`proxy.link.client`, the judge
:mod:`proxy.link.server`, and neither must bring the other's needs along.
"""
