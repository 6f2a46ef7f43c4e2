"""A tiny Llama with random weights and a byte-level tokenizer, as a folder: real code paths, no download."""

from __future__ import annotations

import json
import pathlib

VOCAB = 300
"""256 bytes, then the special tokens and a few merges."""
EOS = 257
CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def write_tiny_model(folder: pathlib.Path, *, seed: int = 0, **generation: float) -> pathlib.Path:
    """Write config, safetensors, tokenizer and template; ``generation`` goes into generation_config.json."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={one: place for place, one in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|start|>", special=True), AddedToken("<|end|>", special=True)])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", bos_token="<|start|>")
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(folder)

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=256,
        eos_token_id=EOS,
        # Peaked enough that greedy text is not all one token.
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=EOS, bos_token_id=256, do_sample=True, **generation
    )
    model.save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == VOCAB
    return folder
