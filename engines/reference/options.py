"""What the reference engine is started with. No torch here: the front door reads these too."""

from __future__ import annotations

import enum

import msgspec


class DType(enum.StrEnum):
    """Precision of weights and activations."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Matmul(enum.StrEnum):
    """How a half-precision matrix product is computed on a CPU.

    Both round operands and results to the half type and accumulate in float32, as matrix units do; they
    differ in the order of additions. ``WIDEN`` holds the weights as float32 and runs the float32 kernel:
    on a CPU without half-precision instructions it is several times faster than torch's own.
    """

    AUTO = "auto"  # WIDEN where the CPU has no instruction for the type, else NATIVE; told in the identity
    NATIVE = "native"
    WIDEN = "widen"


class EngineServerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Command-line face of ``python -m engines.reference``.

    Raises:
        ValueError: a number outside its range; the message names the option.
    """

    model_dir: str
    """Folder with ``config.json``, safetensors, tokenizer and chat template."""
    served_model_name: str | None = None
    """Name that clients ask for; the folder's name when absent."""
    host: str = "127.0.0.1"
    port: int = 0
    """0 lets the kernel choose; the bound URL is printed as one JSON line on stdout."""
    dtype: DType = DType.FLOAT32
    matmul: Matmul = Matmul.AUTO
    device: str = "cpu"
    threads: int = 1
    """torch's intra-op threads. More threads, other sums: it is part of the identity."""
    max_batch: int = 8
    """Requests that share one forward pass at most."""
    max_model_len: int = 2048
    """Prompt and output tokens of one request together."""
    max_waiting: int = 1024
    """Requests that may wait for a place; more are answered 429."""
    max_logprobs: int = 50
    prefill_chunk: int = 512
    """Prompt tokens run at once, so that a long prompt does not stall those already generating."""

    deterministic: bool = False
    """PyTorch's strict settings, and a forward pass for each request alone; serves only what was checked."""
    seed: int = 0
    """Of Python's, numpy's and torch's generators and of requests without one; deterministic mode only."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("port", 0, 65_535),
            ("threads", 1, 1024),
            ("max_batch", 1, 1024),
            ("max_model_len", 2, 1 << 20),
            ("max_waiting", 1, 1 << 20),
            ("max_logprobs", 0, 1000),
            ("prefill_chunk", 1, 1 << 20),
            ("seed", 0, 2**31 - 1),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"--{name.replace('_', '-')}: {value} is outside {low}-{high}")
        if self.seed and not self.deterministic:
            raise ValueError(
                "--seed: only with --deterministic; otherwise each request has a seed of its own"
            )
        if self.matmul is Matmul.WIDEN and (self.dtype is DType.FLOAT32 or self.device != "cpu"):
            raise ValueError("--matmul widen: only for --dtype bfloat16 or float16 on --device cpu")
