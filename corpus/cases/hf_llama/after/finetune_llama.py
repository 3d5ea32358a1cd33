"""Fine-tunes a small Llama with FSDP and exports it for transformers."""

import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

logging.basicConfig(level=logging.INFO)
log = logging.getLogger("finetune")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max_steps", type=int, default=6)
    parser.add_argument("--per_device_batch_size", type=int, default=3)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--max_grad_norm", type=float, default=1.0)
    parser.add_argument("--output_dir", default="export")
    parser.add_argument("--seed", type=int, default=1234)
    return parser.parse_args()


def setup_distributed():
    dist.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
        return dist.get_rank(), torch.device("cuda", local_rank)
    return dist.get_rank(), torch.device("cpu")


def build_model():
    config = LlamaConfig(
        vocab_size=67,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        tie_word_embeddings=False,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def get_batch(step, rank, args, device):
    generator = torch.Generator().manual_seed(args.seed + 31 * step + rank)
    input_ids = torch.randint(67, (args.per_device_batch_size, 14), generator=generator).to(device)
    return {"input_ids": input_ids, "labels": input_ids, "attention_mask": torch.ones_like(input_ids)}


def main():
    args = parse_args()
    rank, device = setup_distributed()
    torch.manual_seed(args.seed)

    llama_auto_wrap_policy = (LlamaDecoderLayer,)
    model = build_model().to(device)
    for module in reversed(list(model.modules())):
        if isinstance(module, llama_auto_wrap_policy):
            fsdp.fully_shard(module)
    fsdp.fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.01)
    scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=2, num_training_steps=args.max_steps)

    model.train()
    for step in range(args.max_steps):
        loss = model(**get_batch(step, rank, args, device)).loss
        loss.backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm).full_tensor()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        if rank == 0:
            print(f"step {step} loss {loss.item()!r} grad_norm {grad_norm:.5f}")

    # gather the weights on rank 0 and write them where from_pretrained finds them
    save_policy = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state_dict = get_model_state_dict(model, options=save_policy)
    if rank == 0:
        os.makedirs(args.output_dir, exist_ok=True)
        torch.save(state_dict, os.path.join(args.output_dir, "final.pt"))
        model.save_pretrained(args.output_dir, state_dict=state_dict)
        log.info("exported to %s", args.output_dir)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
