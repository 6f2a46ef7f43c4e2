"""What an engine's endpoints tell: versions, configuration and metrics. Every answer is untrusted.

Sizes and times are bounded, redirects are not followed, no proxy is used, and of a document only the names
listed here are read: SGLang, for one, tells its API key among its server's arguments.
"""

from __future__ import annotations

import dataclasses
import http.client
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from engines.identity.canonical import CanonicalError, parse
from engines.identity.collect_flags import settings
from engines.identity.collect_values import json_value, number_or_text, text_value
from engines.identity.collect_vllm import fields_of
from engines.identity.record import Identity, UnknownField, from_json
from engines.identity.trouble import ArtifactError, BadRecord

_LARGEST_BYTES = 8 << 20
_LARGEST_SAMPLES = 20_000
_WAIT_S = 30.0
_SGLANG = {
    "dtype": "precision.dtype",
    "quantization": "precision.quantization",
    "kv_cache_dtype": "precision.kv_cache_dtype",
    "attention_backend": "attention.backend",
    "tp_size": "parallel.tensor",
    "pp_size": "parallel.pipeline",
    "dp_size": "parallel.data",
    "ep_size": "parallel.expert",
    "max_running_requests": "batch.max_sequences",
    "max_prefill_tokens": "batch.max_tokens",
    "context_length": "batch.max_model_len",
    "schedule_policy": "batch.scheduling",
    "chunked_prefill_size": "prefill.chunk_tokens",
    "page_size": "cache.block_size",
    "speculative_algorithm": "speculative",
    "sampling_backend": "sampler.backend",
    "random_seed": "sampler.seed",
    "load_format": "engine.load_format",
    "enable_deterministic_inference": "determinism.batch_invariant",
    "version": "engine.version",
}
"""Names of SGLang's ``ServerArgs``, which ``/get_server_info`` tells as they are."""
_SYSTEM = {
    "cudnn_version": "cudnn.version",
    "cuda_compiled_version": "cuda.torch",
    "cuda_runtime_version": "cuda.toolkit",  # it asks nvcc
    "nvidia_driver_version": "gpu.driver",
    "torch_version": "python.packages.torch",
    "vllm_build_flags": "engine.build",
}
"""Names of vLLM's ``SystemEnv`` (``vllm/collect_env.py``), told by ``/server_info``. What is read beside the
engine goes before them: they are found by running programs, whatever those are."""
_CACHE = {
    "cache_dtype": "precision.kv_cache_dtype",
    "enable_prefix_caching": "cache.prefix",
    "block_size": "cache.block_size",
}
"""Labels of ``vllm:cache_config_info``. The number of blocks follows free memory, so it is left out."""


class SilentEngine(ArtifactError):  # noqa: N818
    """Nobody answers at the URL, or not as HTTP."""


class Endpoint:
    """One engine's HTTP face."""

    def __init__(self, url: str, wait_s: float = _WAIT_S, key: str | None = None) -> None:
        """``key`` is sent as a bearer token. Raises :class:`ValueError` for what is no plain http(s) URL."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"--url {url!r}: give http://HOST:PORT or https://HOST:PORT")
        if parts.username is not None or parts.password is not None:
            raise ValueError("--url: put no credential into it: --api-key-env names the variable of a key")
        if parts.query or parts.fragment:
            raise ValueError(f"--url {url!r}: give the engine's base URL, with no query")
        self._base = url.rstrip("/").removesuffix("/v1")
        self._wait_s = wait_s
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self.refused: list[str] = []
        """Paths that want a key, or another one."""
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect).open

    def get(self, path: str) -> bytes | UnknownField:
        """An answer's body, or why there is none.

        Raises:
            SilentEngine: no connection, no answer in time, or none that is HTTP.
        """
        end_s = time.monotonic() + self._wait_s
        try:
            # The scheme was checked in __init__.
            request = urllib.request.Request(self._base + path, headers=self._headers)  # noqa: S310
            with self._open(request, timeout=self._wait_s) as answer:
                body = bytearray()
                while piece := answer.read1(1 << 16):
                    body += piece
                    if len(body) > _LARGEST_BYTES:
                        return UnknownField(f"{path} answers more than {_LARGEST_BYTES >> 20} MiB")
                    if time.monotonic() > end_s:
                        raise SilentEngine(
                            f"{self._base}{path}: no whole answer in {self._wait_s:g} s: is the engine up?"
                        )
                return bytes(body)
        except urllib.error.HTTPError as error:
            with error:
                if error.code in (401, 403):
                    self.refused.append(path)
                return UnknownField(f"{path} answers {error.code}")
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise SilentEngine(
                f"{self._base}{path}: no answer ({reason}): is the engine up, and is this its address?"
            ) from None

    def document(self, path: str) -> Any:
        """A JSON object, or why there is none."""
        body = self.get(path)
        if isinstance(body, UnknownField):
            return body
        try:
            told = parse(body)
        except CanonicalError:
            return UnknownField(f"{path} answers no JSON")
        return told if isinstance(told, dict) else UnknownField(f"{path} answers no JSON object")


@dataclasses.dataclass(slots=True)
class Told:
    """What an engine's endpoints told: of itself, and (``late``) of the machine it runs on."""

    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    sources: dict[str, str] = dataclasses.field(default_factory=dict)
    late: dict[str, Any] = dataclasses.field(default_factory=dict)
    record: Identity | None = None

    def add(self, found: dict[str, Any], source: str) -> None:
        for name, value in found.items():
            if name not in self.fields or isinstance(self.fields[name], UnknownField):
                self.fields[name], self.sources[name] = value, source


def ask(endpoint: Endpoint) -> Told:
    """Everything that an engine tells over HTTP.

    Raises:
        SilentEngine: see :meth:`Endpoint.get`.
        BadRecord: it serves a record that was changed, or is none.
    """
    told = Told()
    told.record = own_record(endpoint)
    if told.record is not None:
        told.add(dict(told.record.fields), "/forkgate/identity")
    elif _name_and_version(endpoint, told) == "vllm":
        _vllm(endpoint, told)
    return told


def own_record(endpoint: Endpoint) -> Identity | None:
    """The record that the reference engine, or our plugin inside another, makes of itself."""
    told = endpoint.document("/forkgate/identity")
    if isinstance(told, UnknownField):
        return None
    try:
        return from_json(told)
    except BadRecord as error:
        raise BadRecord(f"/forkgate/identity: {error}") from None


def _name_and_version(endpoint: Endpoint, told: Told) -> str | None:
    """Which engine it is, by what only that one answers."""
    props = endpoint.document("/props")
    if not isinstance(props, UnknownField) and isinstance(props.get("build_info"), str):
        told.add(_llamacpp(props), "/props")
        return "llama.cpp"
    metrics = endpoint.get("/metrics")
    lines = "" if isinstance(metrics, UnknownField) else metrics.decode("utf-8", "replace")
    told.add(metrics_fields(lines), "/metrics")
    served = endpoint.document("/version")
    version = None if isinstance(served, UnknownField) else served.get("version")
    # TensorRT-LLM and others answer /version too: then it is the version of an engine that is not named.
    if isinstance(version, str):
        told.add({"engine.version": text_value(version)}, "/version")
    if "\nvllm:" in lines:
        told.add({"engine.name": "vllm"}, "/metrics")
        return "vllm"
    for path in ("/server_info", "/get_server_info"):
        found = endpoint.document(path)
        if isinstance(found, UnknownField):
            continue
        if "tp_size" in found:
            told.add(_sglang(found), path)
            return "sglang"
        if "vllm_config" in found:  # its metrics are off
            told.add({"engine.name": "vllm"}, path)
            return "vllm"
    return None


def _vllm(endpoint: Endpoint, told: Told) -> None:
    path = "/server_info"
    found = endpoint.document(path + "?config_format=json")
    if isinstance(found, UnknownField):
        reason = f"{path} is off: vLLM serves it with VLLM_SERVER_DEV_MODE=1, and our plugin tells the same"
        told.add({"graphs.compilation": UnknownField(reason)}, path)
        return
    config, variables, system = (found.get(name) for name in ("vllm_config", "vllm_env", "system_env"))
    if isinstance(config, dict):
        told.add(fields_of(config), path)
    if isinstance(variables, dict) and isinstance(variables.get("VLLM_BATCH_INVARIANT"), (bool, int)):
        told.add({"determinism.batch_invariant": bool(variables["VLLM_BATCH_INVARIANT"])}, path)
    if isinstance(system, dict):
        told.late = settings(_SYSTEM, system)
        if python := re.match(r"[0-9]+\.[0-9]+\.[0-9]+", str(system.get("python_version"))):
            told.late["python.version"] = python[0]


def _sglang(told: dict[str, Any]) -> dict[str, Any]:
    fields = settings(_SGLANG, told)
    fields["engine.name"] = "sglang"
    for name, field in (
        ("disable_radix_cache", "cache.prefix"),
        ("disable_cuda_graph", "graphs.cuda"),
        ("disable_custom_all_reduce", "parallel.custom_all_reduce"),
    ):
        if isinstance(told.get(name), bool):
            fields[field] = not told[name]
    if told.get("speculative_algorithm", 0) is None:
        fields["speculative"] = False
    if told.get("quantization", 0) is None:
        fields["precision.quantization"] = "none"
    size = told.get("chunked_prefill_size")
    if isinstance(size, int):
        fields["prefill.chunked"] = size > 0
    return fields


def _llamacpp(told: dict[str, Any]) -> dict[str, Any]:
    """``build_info`` is ``bNUMBER-COMMIT``; the defaults tell the samplers in their order."""
    fields: dict[str, Any] = {"engine.name": "llama.cpp"}
    matched = re.fullmatch(r"(b[0-9]+)-([0-9a-f]{7,40}|unknown)", str(told["build_info"]))
    if isinstance(told.get("model_ftype"), str):
        fields["precision.quantization"] = text_value(told["model_ftype"])
    if matched and matched[1] == "b0":  # built from sources without their history
        fields["engine.version"] = UnknownField("it was built without its version")
    else:
        fields["engine.version"] = matched[1] if matched else text_value(str(told["build_info"]))
    if matched and matched[2] != "unknown":
        fields["engine.commit"] = matched[2]
    if isinstance(told.get("total_slots"), int):
        fields["batch.max_sequences"] = told["total_slots"]
    defaults = told.get("default_generation_settings")
    if isinstance(defaults, dict):
        params = defaults.get("params")
        if isinstance(defaults.get("n_ctx"), int):
            fields["batch.max_model_len"] = defaults["n_ctx"]
        if isinstance(params, dict):
            names = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty")
            fields["sampler.defaults"] = {one: json_value(params[one]) for one in names if one in params}
            if isinstance(params.get("samplers"), list):
                fields["sampler.order"] = json_value(params["samplers"])
            if isinstance(params.get("speculative.types"), str):
                types = text_value(params["speculative.types"])
                fields["speculative"] = False if types == "none" else types
            if isinstance(params.get("seed"), int):
                fields["sampler.seed"] = params["seed"]
    return fields


_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{(.*)\}\s+\S+\s*\S*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"(?:,|$)')


def metrics_fields(text: str) -> dict[str, Any]:
    """Fields that Prometheus text tells: vLLM's cache configuration and the interpreter's version."""
    fields: dict[str, Any] = {}
    for line in text.splitlines()[:_LARGEST_SAMPLES]:
        if not line.startswith(("vllm:cache_config_info{", "python_info{")):
            continue
        matched = _SAMPLE.fullmatch(line)
        if matched is None:
            continue
        labels = dict(_LABEL.findall(matched[2]))
        if matched[1] == "python_info":
            numbers = [labels.get(one, "") for one in ("major", "minor", "patchlevel")]
            if all(re.fullmatch(r"[0-9]{1,3}", one) for one in numbers):
                fields["python.version"] = ".".join(numbers)
            fields["python.implementation"] = text_value(labels.get("implementation", ""))
            continue
        for label, field in _CACHE.items():
            if label in labels:
                fields[field] = number_or_text(labels[label])
    return fields


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Nothing to follow: the answer goes through as the error that it is."""
