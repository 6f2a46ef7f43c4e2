"""The dashboard's rows, from top to bottom in the order of a pager's questions.

Where does traffic go, is it well, does the copying work, what do the gates say, does forkgate itself keep up.
``tests/helm`` holds every query against a scrape of a running judge.
"""

from __future__ import annotations

import msgspec

RATE = "$__rate_interval"
ROLLOUT = 'forkgate_rollout=~"$rollout"'


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One question and the queries that answer it."""

    title: str
    told: str
    """What a person should make of it."""
    queries: tuple[tuple[str, str], ...]
    """PromQL, legend."""
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


ROWS = (
    Row(
        title="Rollouts",
        panels=(
            Panel(
                title="Stage",
                told="Where each rollout stands.",
                queries=(
                    (f"forkgate_rollout_stage{{{ROLLOUT}}}", "{{forkgate_rollout}}: {{forkgate_stage}}"),
                ),
                kind="stat",
                width=6,
            ),
            Panel(
                title="Rolled back",
                told="1 while a rollback stands. Only a person lifts it.",
                queries=((f"forkgate_rollout_rolled_back{{{ROLLOUT}}}", "{{forkgate_rollout}}"),),
                kind="stat",
                width=6,
            ),
            Panel(
                title="Held",
                told="1 while a rollout waits for a person to look, with the cause.",
                queries=(
                    (f"forkgate_rollout_held{{{ROLLOUT}}}", "{{forkgate_rollout}} {{forkgate_hold_cause}}"),
                ),
                kind="stat",
                width=6,
            ),
            Panel(
                title="Edges on the link",
                told="Edge workers that the judge hears. Those missing serve by their last table.",
                queries=(("forkgate_edges_connected", "edge workers"),),
                kind="stat",
                width=6,
            ),
            Panel(
                title="Tenants sent home",
                told="While the others of their rollout stay; each is lifted by a person.",
                queries=(
                    (
                        f"max by (forkgate_rollout) (forkgate_rollout_tenants_home{{{ROLLOUT}}})",
                        "{{forkgate_rollout}}",
                    ),
                ),
                kind="stat",
                width=12,
            ),
            Panel(
                title="Old pool could take everything back",
                told="1 while it could; at 0 no rollout advances, and a rollback would have nowhere to go.",
                queries=(("min by (forkgate_pool) (forkgate_pool_ready)", "{{forkgate_pool}}"),),
                kind="stat",
                width=12,
            ),
            Panel(
                title="Engines that do not answer",
                told="Live endpoints of a rollout's pools. While the candidate has one, no step is taken.",
                queries=(("max by (forkgate_pool) (forkgate_pool_silent)", "{{forkgate_pool}}"),),
                kind="stat",
                width=12,
            ),
        ),
    ),
    Row(
        title="Live traffic",
        panels=(
            Panel(
                title="Requests by pool",
                told="Where clients' requests are answered.",
                queries=(
                    (
                        f"sum by (forkgate_pool) (rate(forkgate_live_requests_total[{RATE}]))",
                        "{{forkgate_pool}}",
                    ),
                ),
                unit="reqps",
            ),
            Panel(
                title="Answers that are no 2xx",
                told="By pool and class of status; `none` is a client that left before there was one.",
                queries=(
                    (
                        (
                            "sum by (forkgate_pool, http_response_status_class) "
                            f'(rate(forkgate_live_requests_total{{http_response_status_class!="2xx"}}[{RATE}]))'
                        ),
                        "{{forkgate_pool}} {{http_response_status_class}}",
                    ),
                ),
                unit="reqps",
            ),
            Panel(
                title="Time to first byte, 95th percentile",
                told="Request received to first response byte, as clients of each pool see it.",
                queries=(
                    (
                        (
                            "histogram_quantile(0.95, sum by (le, forkgate_pool) "
                            f"(rate(forkgate_live_time_to_first_byte_seconds_bucket[{RATE}])))"
                        ),
                        "{{forkgate_pool}}",
                    ),
                ),
                unit="s",
            ),
            Panel(
                title="Broken off",
                told="Live requests that did not end well, by who broke them off.",
                queries=(
                    (
                        (
                            "sum by (forkgate_pool, forkgate_aborted_by) "
                            f"(rate(forkgate_live_aborted_total[{RATE}]))"
                        ),
                        "{{forkgate_pool}} by {{forkgate_aborted_by}}",
                    ),
                ),
                unit="reqps",
            ),
            Panel(
                title="Answered by home instead",
                told="Canary requests whose candidate failed before its first byte.",
                queries=(
                    (
                        f"sum by (forkgate_tenant) (rate(forkgate_live_retried_total[{RATE}]))",
                        "{{forkgate_tenant}}",
                    ),
                ),
                unit="reqps",
            ),
            Panel(
                title="Endpoints by environment",
                told="More than one digest in a pool is two environments under one name.",
                queries=(("forkgate_pool_endpoints", "{{forkgate_pool}} {{forkgate_environment}}"),),
            ),
            Panel(
                title="Requests by environment",
                told="The digest that answered, as the engines' own answers told it.",
                queries=(
                    (
                        (
                            "sum by (forkgate_pool, forkgate_environment) "
                            f"(rate(forkgate_live_requests_total[{RATE}]))"
                        ),
                        "{{forkgate_pool}} {{forkgate_environment}}",
                    ),
                ),
                unit="reqps",
            ),
            Panel(
                title="Requests by tenant",
                told="Tenants that the configuration names; all others are `other`.",
                queries=(
                    (
                        f"sum by (forkgate_tenant) (rate(forkgate_live_requests_total[{RATE}]))",
                        "{{forkgate_tenant}}",
                    ),
                ),
                unit="reqps",
            ),
        ),
    ),
    Row(
        title="Copies",
        panels=(
            Panel(
                title="Captured, compared",
                told="What was drawn for a copy, and what became a pair. The rest was dropped.",
                queries=(
                    (f"rate(forkgate_shadow_captures_total[{RATE}])", "captured"),
                    (f"rate(forkgate_shadow_compared_total[{RATE}])", "compared"),
                ),
                unit="reqps",
            ),
            Panel(
                title="Dropped, by reason",
                told="Each reason names the setting or the part that is in the way.",
                queries=(
                    (
                        f"sum by (forkgate_reason) (rate(forkgate_shadow_drops_total[{RATE}]))",
                        "{{forkgate_reason}}",
                    ),
                ),
                unit="reqps",
            ),
            Panel(
                title="Dropped by the judge, by rollout",
                told="Why a rollout waits for pairs; `forkgate rollout show` has the last one in words.",
                queries=(
                    (
                        (
                            "sum by (forkgate_rollout, forkgate_reason) "
                            f"(rate(forkgate_rollout_drops_total{{{ROLLOUT}}}[{RATE}]))"
                        ),
                        "{{forkgate_rollout}} {{forkgate_reason}}",
                    ),
                ),
                unit="reqps",
            ),
            Panel(
                title="Starts put off or refused",
                told="What keeps copies from engines: waiting requests, a full KV cache, a spent budget.",
                queries=(
                    (
                        (
                            "sum by (forkgate_rollout, forkgate_refusal) "
                            f"(rate(forkgate_shadow_refused_total{{{ROLLOUT}}}[{RATE}]))"
                        ),
                        "{{forkgate_rollout}} {{forkgate_refusal}}",
                    ),
                ),
                unit="reqps",
            ),
            Panel(
                title="In flight",
                told="Captures neither compared nor dropped yet.",
                queries=(("forkgate_shadow_in_flight", "captures"),),
            ),
            Panel(
                title="Pairs, by why they were set aside",
                told="An empty reason is a pair that counts.",
                queries=(
                    (
                        (
                            "sum by (forkgate_rollout, forkgate_arm, forkgate_set_aside) "
                            f"(rate(forkgate_shadow_pairs_total{{{ROLLOUT}}}[{RATE}]))"
                        ),
                        "{{forkgate_rollout}} {{forkgate_arm}} {{forkgate_set_aside}}",
                    ),
                ),
                unit="ops",
            ),
            Panel(
                title="Forks, by class",
                told="Candidate and control beside each other: the old environment forks from itself too.",
                queries=(
                    (
                        (
                            "sum by (forkgate_rollout, forkgate_arm, forkgate_fork_class) "
                            f"(rate(forkgate_shadow_forks_total{{{ROLLOUT}}}[{RATE}]))"
                        ),
                        "{{forkgate_rollout}} {{forkgate_arm}} {{forkgate_fork_class}}",
                    ),
                ),
                unit="ops",
            ),
            Panel(
                title="Shadow tokens",
                told="What the copies cost, prompt and output, on each pool.",
                queries=(
                    (
                        (
                            "sum by (forkgate_rollout, forkgate_pool) "
                            f"(rate(forkgate_shadow_tokens_total{{{ROLLOUT}}}[{RATE}]))"
                        ),
                        "{{forkgate_rollout}} on {{forkgate_pool}}",
                    ),
                ),
                unit="ops",
            ),
        ),
    ),
    Row(
        title="Gates",
        panels=(
            Panel(
                title="Evidence against the candidate",
                told="Natural logarithm of the e-value that rolls back once it passes ln(1/alpha).",
                queries=(
                    (
                        f'forkgate_gate_log_e{{{ROLLOUT}, forkgate_test="rollback"}}',
                        "{{forkgate_rollout}} {{forkgate_gate}}",
                    ),
                ),
            ),
            Panel(
                title="Evidence for the candidate",
                told="The same for promotion: that it is no worse than the policy's margin.",
                queries=(
                    (
                        f'forkgate_gate_log_e{{{ROLLOUT}, forkgate_test="promotion"}}',
                        "{{forkgate_rollout}} {{forkgate_gate}}",
                    ),
                ),
            ),
            Panel(
                title="Observations",
                told="What each gate's answer rests on. A flat line can reach no verdict.",
                queries=(
                    (
                        f"forkgate_gate_observations{{{ROLLOUT}}}",
                        "{{forkgate_rollout}} {{forkgate_gate}}",
                    ),
                ),
            ),
            Panel(
                title="Changes of answer",
                told="Pass, fail, inconclusive, error.",
                queries=(
                    (
                        (
                            "sum by (forkgate_rollout, forkgate_gate, forkgate_answer) "
                            f"(increase(forkgate_gate_verdicts_total{{{ROLLOUT}}}[{RATE}]))"
                        ),
                        "{{forkgate_rollout}} {{forkgate_gate}} {{forkgate_answer}}",
                    ),
                ),
            ),
        ),
    ),
    Row(
        title="forkgate itself",
        panels=(
            Panel(
                title="Flip, worst in five minutes",
                told="Deciding token to the last edge's acknowledgement, without and for the latch's disk.",
                queries=(
                    (
                        (
                            "histogram_quantile(1, sum by (le) "
                            "(increase(forkgate_flip_duration_seconds_bucket[5m])))"
                        ),
                        "flip",
                    ),
                    (
                        (
                            "histogram_quantile(1, sum by (le) "
                            "(increase(forkgate_flip_fsync_duration_seconds_bucket[5m])))"
                        ),
                        "fsync",
                    ),
                ),
                unit="s",
            ),
            Panel(
                title="Edges that did not acknowledge a flip",
                told="Each may still send a tenant to the new pool.",
                queries=(
                    (
                        "sum by (forkgate_rollout) (forkgate_flip_unacknowledged_total)",
                        "{{forkgate_rollout}}",
                    ),
                ),
            ),
            Panel(
                title="What an edge adds to the first byte",
                told="Its own time, without its pool's and its clients'.",
                queries=tuple(
                    (
                        (
                            f"histogram_quantile({share}, sum by (le) "
                            f"(rate(forkgate_edge_overhead_seconds_bucket[{RATE}])))"
                        ),
                        legend,
                    )
                    for share, legend in (("0.5", "half of them under"), ("0.99", "99 of 100 under"))
                ),
                unit="s",
            ),
            Panel(
                title="Hooks: what became of notices",
                told="Given up after every attempt, or lost from a full queue: that receiver was not told.",
                queries=(
                    (
                        (
                            "sum by (forkgate_hook, forkgate_outcome) "
                            f"(increase(forkgate_hook_deliveries_total[{RATE}]))"
                        ),
                        "{{forkgate_hook}} {{forkgate_outcome}}",
                    ),
                    ("sum by (forkgate_hook) (forkgate_hook_waiting)", "{{forkgate_hook}} waiting"),
                ),
            ),
            Panel(
                title="Hooks: answers to steps",
                told="Allowed, vetoed, or silent; a step waits for every hook that it is asked of.",
                queries=(
                    (
                        (
                            "sum by (forkgate_hook, forkgate_answer) "
                            f"(increase(forkgate_hook_answers_total[{RATE}]))"
                        ),
                        "{{forkgate_hook}} {{forkgate_answer}}",
                    ),
                ),
            ),
            Panel(
                title="Evidence on disk",
                told="Oldest goes first at evidence.max_bytes.",
                queries=(("forkgate_evidence_size_bytes", "bytes"),),
                unit="bytes",
            ),
        ),
    ),
)
