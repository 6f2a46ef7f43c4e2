"""Client traffic in, live answer out, shadow copies on the side.

::

    edge    the data plane, one process a core: routes, answers, and hands copies over without waiting
    link    edge ↔ judge over gRPC: captures and live records up, route tables down
    ledger  what became of every capture, counted by both ends
    live    the fixed-size record that every live request leaves
    logs    a line of JSON for whatever happens; tls_door: a TLS listener, for edge and judge alike
    mirror  in the judge: each captured request once more, on baseline and candidate side by side

Nothing is imported here: an edge worker imports ``proxy.edge`` and ``proxy.link.client`` and must get
neither engines nor numbers with them; the judge imports ``proxy.link.server`` and ``proxy.mirror``.
"""
