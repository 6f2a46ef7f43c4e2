"""The same model with something wrong with it: weights damaged, or only the chat template another."""

from __future__ import annotations

import json
import pathlib
import shutil

import torch
from safetensors.torch import load_file, save_file

ZEROED_LAYER = 15
"""Of SmolLM2-135M's thirty."""
BITS = 3
GROUP = 32
"""Weights that share a scale."""


def damaged(model_dir: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """One layer's output projections zeroed, then every matrix rounded to three bits in groups of 32."""
    copied(model_dir, target)
    weights = load_file(model_dir / "model.safetensors")
    for name, tensor in weights.items():
        layer = f"layers.{ZEROED_LAYER}."
        if layer in name and name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = torch.zeros_like(tensor)
        elif tensor.ndim == 2:
            weights[name] = rounded(tensor)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def rounded(tensor: torch.Tensor, bits: int = BITS) -> torch.Tensor:
    """Symmetric rounding to ``bits`` with one scale per :data:`GROUP` weights of a row; shape kept."""
    rows, columns = tensor.shape
    assert columns % GROUP == 0, tensor.shape
    groups = tensor.float().reshape(rows, columns // GROUP, GROUP)
    top = 2 ** (bits - 1) - 1
    scale = groups.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / top
    return ((groups / scale).round().clamp(-top - 1, top) * scale).reshape(rows, columns).to(tensor.dtype)


def other_template(model_dir: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """Only the chat template says something else: a system line that the original does not have."""
    copied(model_dir, target)
    shutil.copy(model_dir / "model.safetensors", target / "model.safetensors")
    line = "<|im_start|>system\nYou answer in one sentence.<|im_end|>\n"
    template = target / "chat_template.jinja"
    if template.exists():
        template.write_text(line + template.read_text())
    else:
        config = json.loads((target / "tokenizer_config.json").read_text())
        config["chat_template"] = line + config["chat_template"]
        (target / "tokenizer_config.json").write_text(json.dumps(config))
    return target


def copied(model_dir: pathlib.Path, target: pathlib.Path) -> None:
    """Everything but the weights."""
    target.mkdir(parents=True)
    for path in model_dir.iterdir():
        if path.suffix != ".safetensors" and path.is_file():
            shutil.copy(path, target / path.name)
