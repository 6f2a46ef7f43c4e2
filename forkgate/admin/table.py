"""The table of routes: what is served, who may ask, what the log calls it, and what the document says."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from forkgate.admin.answers import (
    Acted,
    AuditLines,
    Health,
    Ledger,
    Pairs,
    Ready,
    Replayed,
    Rollout,
    Rollouts,
    ShownCapture,
    Status,
)
from forkgate.admin.evidence import MAX_LIST, MAX_REPLICATE, EvidenceRoutes
from forkgate.admin.general import MAX_AUDIT_LINES, GeneralRoutes
from forkgate.admin.keeping import keeping_routes
from forkgate.admin.port import AdminPort, Verb
from forkgate.admin.roles import Need
from forkgate.admin.rollouts import MAX_REASON_CHARS, OF_A_TENANT, RolloutRoutes
from forkgate.admin.routes import Query, Route
from forkgate.admin.verdict import VerdictAnswer

VIEW, CONTENT, STEP = (Need.VIEW,), (Need.VIEW, Need.CONTENT), (Need.VIEW, Need.STEP)

_FILTERS = (
    Query(name="rollout", about="Of this rollout."),
    Query(name="tenant", about="Of this tenant."),
    Query(name="forked", about="Only pairs that forked, or only those that did not.", kind="boolean"),
)
_STORE = {503: "The evidence store cannot be read."}
_AMBIGUOUS = {409: "Several captures begin with this ID."}

VERBS = {
    Verb.START: "Let a pending rollout begin.",
    Verb.PAUSE: "Let nothing advance; traffic stays, and a breach still rolls back.",
    Verb.RESUME: "Go on after a pause.",
    Verb.PROMOTE: "Take the next step, if every condition of it holds.",
    Verb.ROLLBACK: "Send its traffic, or one tenant's, back to the old pool, and latch.",
    Verb.ABORT: "End it, with its traffic at home.",
    Verb.LIFT: "Lift a rollback or a hold, of the rollout or of one tenant; gates start anew.",
}


class Told(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person says with an act."""

    reason: Annotated[str, Meta(min_length=1, max_length=MAX_REASON_CHARS, pattern=r"\S")]
    """Why; kept in the journal and the audit log."""


class ToldOfTenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person says with an act that may be about one tenant."""

    reason: Annotated[str, Meta(min_length=1, max_length=MAX_REASON_CHARS, pattern=r"\S")]
    """Why; kept with the latch, in the journal and in the audit log."""
    tenant: Annotated[str, Meta(min_length=1)] | None = None
    """Only this tenant is meant."""


class ToldOfStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person says with a promote."""

    reason: Annotated[str, Meta(min_length=1, max_length=MAX_REASON_CHARS, pattern=r"\S")]
    """Why; kept in the journal and the audit log."""
    look: Annotated[str, Meta(min_length=1)] | None = None
    """The stage or step that is to be left, as the rollout's ``look`` told it; 409 once it stands elsewhere,
    so that a promote said twice moves once. Absent: whatever it stands in."""


def _body_of(verb: Verb) -> type[msgspec.Struct]:
    if verb is Verb.PROMOTE:
        return ToldOfStep
    return ToldOfTenant if verb in OF_A_TENANT else Told


def table(judge: AdminPort, general: GeneralRoutes) -> tuple[Route, ...]:
    """Every route. The document is made of the same rows (:mod:`forkgate.admin.openapi`)."""
    rollouts, evidence = RolloutRoutes(judge), EvidenceRoutes(judge)
    return (
        Route(
            method="GET",
            path="/healthz",
            handler=general.health,
            summary="The judge's event loop answers.",
            needs=(),
            answer=Health,
        ),
        Route(
            method="GET",
            path="/readyz",
            handler=general.ready,
            summary="Every engine has answered a probe; an engine that dies later stays ready.",
            needs=(),
            answer=Ready,
            statuses={503: "An engine has not answered yet."},
        ),
        Route(
            method="GET",
            path="/v1/openapi.json",
            handler=general.document,
            summary="This document.",
            needs=VIEW,
            answer=dict[str, Any],
        ),
        Route(
            method="GET",
            path="/v1/status",
            handler=general.status,
            summary="Edges, routes, engines, ledger, rollouts, evidence, latch, troubles in words.",
            needs=VIEW,
            answer=Status,
        ),
        Route(
            method="GET",
            path="/v1/ledger",
            handler=general.ledger,
            summary="captured = compared + dropped + in flight, whole and by edge incarnation.",
            needs=VIEW,
            answer=Ledger,
        ),
        Route(
            method="GET",
            path="/v1/audit",
            handler=general.audit,
            summary="The last lines of the audit log, oldest first.",
            needs=CONTENT,
            answer=AuditLines,
            query=(
                Query(name="limit", about="How many lines.", kind="integer", least=1, most=MAX_AUDIT_LINES),
            ),
            statuses={503: "The log cannot be read."},
        ),
        Route(
            method="GET",
            path="/v1/rollouts",
            handler=rollouts.list,
            summary="Every rollout.",
            needs=VIEW,
            answer=Rollouts,
        ),
        Route(
            method="GET",
            path="/v1/rollouts/{name}",
            handler=rollouts.show,
            summary="State, policy, verdicts with value, limit and n.",
            needs=VIEW,
            answer=Rollout,
        ),
        Route(
            method="GET",
            path="/v1/rollouts/{name}/plan",
            handler=rollouts.plan,
            summary="Its steps, where it stands, and what each waits for.",
            needs=VIEW,
            answer=dict[str, Any],
        ),
        Route(
            method="GET",
            path="/v1/rollouts/{name}/verdict",
            handler=general.verdict,
            summary="All gates in one word and one number, for an Argo Rollouts web metric.",
            needs=VIEW,
            answer=VerdictAnswer,
        ),
        Route(
            method="POST",
            path="/v1/rollouts/{name}/verdict",
            handler=general.expect,
            summary="200 when the verdict is what is expected, for a Flagger webhook; its body is not read.",
            needs=VIEW,
            answer=VerdictAnswer,
            query=(
                Query(
                    name="expect",
                    about="`pass` (default), `fail`, or `not_fail`: anything but fail and error.",
                    choices=("pass", "fail", "not_fail"),
                ),
            ),
            statuses={409: "The verdict is another one."},
        ),
        *(
            Route(
                method="POST",
                path=f"/v1/rollouts/{{name}}/{verb}",
                handler=rollouts.act(verb),
                summary=summary,
                needs=STEP,
                answer=Acted,
                body=_body_of(verb),
                statuses={
                    409: "Something stands in the way; the message says what.",
                    503: "The disk will not take what must be durable.",
                },
                action=f"rollout.{verb}",
                unlogged_too=verb is Verb.ROLLBACK,
            )
            for verb, summary in VERBS.items()
        ),
        Route(
            method="GET",
            path="/v1/evidence",
            handler=evidence.list,
            summary="Pairs, newest first, without their content.",
            needs=VIEW,
            answer=Pairs,
            query=(
                *_FILTERS,
                Query(name="limit", about="Pairs a page.", kind="integer", least=1, most=MAX_LIST),
                Query(name="cursor", about="Of the page before.", pattern="^[0-9]{1,18}$"),
            ),
            statuses=_STORE,
        ),
        Route(
            method="GET",
            path="/v1/evidence/export",
            handler=evidence.export,
            summary="Every matching capture as NDJSON, oldest first (docs/evidence-format.md).",
            needs=CONTENT,
            answer=dict[str, Any],
            query=_FILTERS,
            statuses=_STORE,
            lines=True,
            action="evidence.export",
        ),
        *keeping_routes(judge),  # before {id}, which would take their names
        Route(
            method="GET",
            path="/v1/evidence/{id}",
            handler=evidence.show,
            summary="Everything about one capture, and what its fork means.",
            needs=CONTENT,
            answer=ShownCapture,
            statuses={**_STORE, **_AMBIGUOUS},
            action="evidence.show",
        ),
        Route(
            method="POST",
            path="/v1/evidence/{id}/replay",
            handler=evidence.replay,
            summary="Run both arms again: does the fork stand?",
            needs=CONTENT,
            answer=Replayed,
            query=(
                Query(name="replicate", about="Which one.", kind="integer", least=0, most=MAX_REPLICATE),
                Query(name="arm", about="Compared with the baseline.", choices=("candidate", "control")),
            ),
            statuses={
                **_STORE,
                409: "Several captures begin with this ID, or the pair is no longer whole.",
                502: "An engine failed.",
            },
            action="evidence.replay",
        ),
    )
