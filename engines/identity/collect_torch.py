"""What torch itself tells of this process. torch is imported only when that is asked for."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

from engines.identity.collect_values import text_value
from engines.identity.record import UnknownField


def torch_facts() -> dict[str, Any]:
    """Fields by ``torch``; importing it takes seconds where it is not loaded yet."""
    torch = sys.modules.get("torch")
    if torch is None:
        try:
            torch = importlib.import_module("torch")
        except (ImportError, OSError) as error:
            reason = UnknownField(f"torch was asked and cannot be imported here: {type(error).__name__}")
            return dict.fromkeys(
                ("precision.tf32", "cpu.capability", "compiler.torch", "torch.deterministic"), reason
            )
    config = str(_ask(lambda: torch.__config__.show()))
    compiler = re.search(r"^\s*- (GCC [0-9.]+|clang [0-9.]+|MSVC [0-9]+)", config, re.M)
    fields: dict[str, Any] = {
        "cpu.threads": _ask(torch.get_num_threads),
        "torch.threads_interop": _ask(torch.get_num_interop_threads),
        "cpu.capability": _ask(torch.backends.cpu.get_cpu_capability),
        "torch.deterministic": _ask(torch.are_deterministic_algorithms_enabled),
        "torch.git": _ask(lambda: text_value(torch.version.git_version)),
        "compiler.torch": compiler[1] if compiler else UnknownField("torch does not tell its compiler"),
        "precision.tf32": _ask(lambda: _tf32(torch)),
    }
    if _ask(torch.cuda.is_available) is not True:
        return fields
    fields["cuda.torch"] = _ask(lambda: str(torch.version.cuda))
    fields["cudnn.version"] = _ask(lambda: _dotted(torch.backends.cudnn.version()))
    fields["nccl.version"] = _ask(lambda: ".".join(str(one) for one in torch.cuda.nccl.version()))
    return fields


def _ask(question: Callable[[], Any]) -> Any:
    # Another version of torch may lack the function, or refuse it in this build.
    try:
        return question()
    except (AttributeError, RuntimeError, TypeError, ImportError) as error:
        return UnknownField(f"torch does not tell it: {type(error).__name__}")


def _tf32(torch: Any) -> bool:
    # The mixed use of torch's old and new switches raises; told as unknown then.
    return bool(torch.backends.cuda.matmul.allow_tf32)


def _dotted(version: int | None) -> Any:
    """cuDNN counts 9.1.2 as 90102, and 8.9.7 as 8907."""
    if version is None:
        return UnknownField("torch was built without cuDNN")
    unit = 10000 if version >= 90000 else 1000
    return f"{version // unit}.{version % unit // 100}.{version % 100}"
