"""Language models."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from . import data
from .recipe import Recipe

LLAMA_TINY = "emb_dim=32,\n            nheads=4,\n            nlayers=2,"
LLAMA_TINY_END = """            hidden_grow_factor=3,
            kvheads=4,
            src_vocab_size=256,
            multiple_of=8,
            max_expected_seq_len=64,
        )"""
GPT2_TINY = "vocab_size=256, n_layer=2, n_head=2, n_embd=16"


def nanogpt_data(folder: Path) -> None:
    data.token_files(folder / "data" / "tiny")


def llmc_tokens(folder: Path) -> None:
    """A header of 256 numbers (magic, version, count), then 16-bit tokens."""
    tokens = data.tokens(256, 2000)
    header = struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
    for name in ("train.bin", "val.bin"):
        (folder / name).write_bytes(header + struct.pack(f"<{len(tokens)}H", *tokens))


def tiny_gpt2(folder: Path) -> None:
    """A model and a tokenizer of one token a word that `from_pretrained` finds."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=64, n_embd=16, n_layer=2, n_head=2)).save_pretrained(folder / "tiny")
    words = ["<end>", "<unknown>", "Human", "Assistant", ":", *(f"w{number}" for number in range(50))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unknown>", bos_token="<end>"
    ).save_pretrained(folder / "tiny")
    assert json.loads((folder / "tiny" / "config.json").read_text())["n_layer"] == 2


LANGUAGE = (
    Recipe(
        name="nanoGPT",
        repository="karpathy/nanoGPT",
        prepare=nanogpt_data,
        command="""
            train.py --dataset=tiny --out_dir=out --compile=False --dtype=float32 --n_layer=2 --n_head=2 --n_embd=16
            --block_size=16 --batch_size=2 --gradient_accumulation_steps=4 --eval_interval=3 --eval_iters=2 --max_iters=6
            --warmup_iters=2 --lr_decay_iters=12 --grad_clip=0.5
        """,
        resume="--init_from=resume --max_iters=10",
    ),
    Recipe(
        name="llm.c",
        repository="karpathy/llm.c",
        prepare=llmc_tokens,
        packages=("transformers",),
        stubs=("tiktoken",),
        replace={"train_gpt2.py": (("vocab_size=50257, n_layer=12, n_head=12, n_embd=768", GPT2_TINY),)},
        command="""
            train_gpt2.py --input_bin train.bin --input_val_bin val.bin --output_dir out --model d12 --batch_size 2
            --sequence_length 16 --total_batch_size 128 --num_iterations 6 --val_loss_every 3 --val_max_steps 2
            --sample_every 3 --overfit_single_batch 0 --weight_decay 0.1 --write_tensors 0
        """,
    ),
    Recipe(
        name="fms-fsdp",
        repository="foundation-model-stack/fms-fsdp",
        packages=("ibm-fms", "fire", "termcolor", "pyarrow", "transformers"),
        replace={
            "fms_fsdp/policies/param_init.py": (
                ("from fms.modules.embedding import WordEmbedding", "from torch.nn import Embedding as WordEmbedding"),
            ),
            "main_training_llama.py": (("    model.rot_emb.", "    model.base_model.rot_emb."),),
            "fms_fsdp/utils/config_utils.py": (
                ("emb_dim=2048,\n            nheads=16,\n            nlayers=24,", LLAMA_TINY),
                ("            hidden_grow_factor=3,\n            kvheads=4,\n        )", LLAMA_TINY_END),
            ),
        },
        command="""
            main_training_llama.py --model_variant=llama2_1.4b --use_dummy_dataset=True --vocab_size=256 --seq_length=16
            --batch_size=2 --num_steps=20 --report_interval=1 --checkpoint_interval=10 --use_torch_compile=False
            --sharding_strategy=fsdp --mixed_precision=False --ckpt_save_path=out --ckpt_load_path=out
        """,
        resume="--num_steps=23",
    ),
    Recipe(
        name="direct-preference-optimization",
        repository="eric-mitchell/direct-preference-optimization",
        prepare=tiny_gpt2,
        packages=("hydra-core", "omegaconf", "transformers"),
        stubs=("datasets", "tensor_parallel", "wandb", "bs4"),
        replace={"utils.py": (("random.seed(self.seed)\n        np", "random.seed(int(self.seed))\n        np"),)},
        command="""
            train.py model=blank_model model.name_or_path=tiny model.block_name=GPT2Block loss=dpo loss.beta=0.1
            exp_name=tiny trainer=FSDPTrainer batch_size=4 eval_batch_size=4 gradient_accumulation_steps=2
            sample_during_eval=false n_examples=24 n_eval_examples=4 eval_every=8 max_length=24 max_prompt_length=12
            wandb.enabled=false lr=1e-3 warmup_steps=2 local_dirs=[out]
        """,
    ),
)
