"""``python -m engines.reference.convert FILE.gguf FOLDER``: a GGUF file as a safetensors folder.

The weights are dequantised and stored as bfloat16, the type the model was published in: half the size of
float32 and exact for every engine that computes in bfloat16. One line of progress on stdout for each part:
the share done, then words.
"""

from __future__ import annotations

import pathlib
import sys


def convert(gguf: pathlib.Path, folder: pathlib.Path) -> None:
    """Write config, weights, tokenizer, chat template and generation config into a new ``folder``."""
    _tell(0.0, "loading torch and transformers")
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    _tell(0.2, "dequantising the weights")
    source, name = gguf.parent, gguf.name
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=name,
        quantization_config=transformers.GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    config = loaded.config.to_dict()
    # A model that still says it is quantised is refused by every engine.
    config.pop("quantization_config", None)
    plain = transformers.AutoModelForCausalLM.from_config(
        type(loaded.config).from_dict(config), dtype=torch.bfloat16
    )
    plain.load_state_dict(loaded.state_dict())
    _tell(0.6, "reading the tokenizer")
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, gguf_file=name)
    tokenizer.model_max_length = loaded.config.max_position_embeddings
    _tell(0.8, "writing safetensors")
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tell(share: float, what: str) -> None:
    print(f"{share} {what}", flush=True)  # noqa: T201


if __name__ == "__main__":
    convert(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
