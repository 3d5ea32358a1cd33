import json
import logging
import os

import torch
import torch.nn.functional as F


def is_master(args):
    return args.rank == 0


def contrastive_loss(images, texts):
    logits = 5.0 * images @ texts.t()
    labels = torch.arange(logits.shape[0], device=logits.device)
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


def make_batch(args, epoch, iteration):
    generator = torch.Generator().manual_seed(7919 * epoch + 31 * iteration + args.rank)
    images = torch.randn(args.batch_size, 12, generator=generator)
    texts = images[:, :6] + 0.3 * torch.randn(args.batch_size, 6, generator=generator)
    return images.to(args.device), texts.to(args.device)


def train_one_epoch(model, optimizer, epoch, args):
    model.train()
    for iteration in range(args.iterations):
        images, texts = make_batch(args, epoch, iteration)
        loss = contrastive_loss(*model(images, texts))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {args.rank} epoch {epoch} iteration {iteration} loss {loss.item()!r}")

        if (iteration + 1) % args.check_every == 0 and is_master(args):
            # a quick look at held-out batches
            model.eval()
            total = 0.0
            with torch.no_grad():
                for index in range(2):
                    held_out = make_batch(args, 1000 + epoch, index)
                    total += contrastive_loss(*model(*held_out)).item()
            logging.info(f"held-out loss {total / 2:.4f}")
            model.train()
            logging.info(f"{iteration + 1} of {args.iterations} done")


def evaluate(model, data, epoch, args):
    metrics = {}
    if not is_master(args):
        return metrics
    model.eval()
    loader = data["val"]
    cumulative_loss, hits, num_samples = 0.0, 0, 0
    with torch.inference_mode():
        for i, (images, texts) in enumerate(loader):
            image_features, text_features = model(images.to(args.device), texts.to(args.device))
            cumulative_loss += contrastive_loss(image_features, text_features) * images.shape[0]
            num_samples += images.shape[0]
            if is_master(args) and (i % 2) == 0:
                logging.info(
                    f"eval epoch {epoch} [{num_samples}]\t"
                    f"loss {cumulative_loss / num_samples:.6f}"
                )
                nearest = (image_features @ text_features.t()).argmax(dim=1)
                hits += (nearest == torch.arange(len(nearest), device=nearest.device)).sum().item()
        metrics.update({"loss": (cumulative_loss / num_samples).item(), "hits": hits})

    logging.info(f"eval epoch {epoch} " + "\t".join(f"{k}: {v:.4f}" for k, v in metrics.items()))
    with open(os.path.join(args.output, "results.jsonl"), "a+") as f:
        f.write(json.dumps({"epoch": epoch, **metrics}) + "\n")
    return metrics
