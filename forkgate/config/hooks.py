"""The ``hooks:`` section: whom the judge tells, and who may stop a step."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from forkgate.config.problems import did_you_mean
from forkgate.config.rules import Found, check_files, check_name

if TYPE_CHECKING:
    from forkgate.config.model import Config


class HookEvent(enum.StrEnum):
    """What a hook may be told."""

    BEFORE_STEP = "before_step"  # asked, and its answer counts: it may refuse the step
    STAGE = "stage"  # a rollout is in another stage, or another step of one
    BREACH = "breach"  # a gate failed, or a person asked: the rollback is on its way
    ROLLBACK = "rollback"  # the edges have been told, or could not be
    HOLD = "hold"  # nothing advances until a person has looked
    LIFT = "lift"  # a person let a rollout go on
    PROMOTION = "promotion"  # home is the candidate now
    POOL = "pool"  # the old pool could not take everything back, or can again


class HookFormat(enum.StrEnum):
    """The shape of a hook's body."""

    WEBHOOK = "webhook"  # JSON with all that is known, signed
    SLACK = "slack"  # {"text": ...}, as Slack, Mattermost and many others take it


class OnSilence(enum.StrEnum):
    """What becomes of a step when its hook does not answer."""

    WAIT = "wait"  # the step waits, and says for whom
    GO = "go"  # the step goes on as if it had been allowed


class HookSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One receiver. Exactly one of ``url`` and ``url_file``."""

    name: str
    url: str | None = None
    url_file: str | None = None
    """A file that holds the URL, for URLs that are themselves a secret."""
    format: HookFormat = HookFormat.WEBHOOK
    """``webhook`` or ``slack``."""
    events: Annotated[tuple[HookEvent, ...], Meta(min_length=1)]
    """Of ``before_step``, ``stage``, ``breach``, ``rollback``, ``hold``, ``lift``, ``promotion``,
    ``pool``."""
    rollouts: tuple[str, ...] = ()
    """Only these; empty: all."""
    secret_file: str | None = None
    """Key of the signature (HMAC-SHA256); needed for ``webhook``."""
    ca_file: str | None = None
    """PEM authorities of an ``https`` receiver; the system's when absent."""
    timeout_s: Annotated[float, Meta(gt=0, le=60)] = 5.0
    """One attempt, from connecting to the end of the answer."""
    retry_s: Annotated[float, Meta(ge=0, le=3600)] = 120.0
    """How long a notification is tried again before it is given up."""
    queue_items: Annotated[int, Meta(ge=1, le=10_000)] = 100
    """Notifications that wait for this receiver; a further one is lost and counted."""
    on_silence: OnSilence = OnSilence.WAIT
    """Of ``before_step``: ``wait`` or ``go`` when no answer came."""
    again_s: Annotated[float, Meta(ge=1)] = 30.0
    """Of ``before_step``: how long after a refusal or a silence the question is put again."""


def before_step_hooks(config: Config, rollout: str) -> tuple[str, ...]:
    """The hooks that each step of a rollout has to be allowed by."""
    return tuple(
        hook.name
        for hook in config.hooks
        if HookEvent.BEFORE_STEP in hook.events and (not hook.rollouts or rollout in hook.rollouts)
    )


def check_hooks(config: Config) -> Found:
    """What is wrong with this section, beside its shape."""
    known = [rollout.name for rollout in config.rollouts]
    names: set[str] = set()
    for index, hook in enumerate(config.hooks):
        path = f"hooks[{index}]"
        yield from check_name(f"{path}.name", hook.name)
        if hook.name in names:
            yield f"{path}.name", f"{hook.name!r} is the name of an earlier hook too, rename one"
        names.add(hook.name)
        if (hook.url is None) == (hook.url_file is None):
            yield path, "needs exactly one of url and url_file"
        if hook.url is not None and (fault := url_fault(hook.url)):
            yield f"{path}.url", fault
        yield from check_files(path, url_file=hook.url_file)
        yield from check_files(path, secret_file=hook.secret_file)
        yield from check_files(path, ca_file=hook.ca_file)
        if hook.format is HookFormat.WEBHOOK and hook.secret_file is None:
            yield (
                f"{path}.secret_file",
                "missing, a webhook is signed: make one with `openssl rand -hex 32`",
            )
        if hook.format is HookFormat.SLACK and HookEvent.BEFORE_STEP in hook.events:
            yield f"{path}.events", "before_step asks a question that slack cannot answer, use a webhook"
        for at, name in enumerate(hook.rollouts):
            if name not in known:
                yield f"{path}.rollouts[{at}]", f"no rollout is called {name!r}, {did_you_mean(name, known)}"


def url_fault(url: str) -> str | None:
    """Why a hook cannot be sent there, if it cannot. The URL itself is not repeated: it may be a secret."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return f"is not a URL: {error}"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "is not an http:// or https:// URL"
    if parts.username or parts.password:
        return "holds a credential, which proxies and logs would see: hooks are signed instead"
    return None
