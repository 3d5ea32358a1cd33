"""Random sentences in the form of wikihow, and a tokenizer that makes a number of a letter."""

import random

import torch


class Rows(list):
    @property
    def shape(self):
        return (len(self), 2)

    def select(self, rows):
        return Rows(self[row] for row in rows)


def load_dataset(name, *_, split=None, **__):
    def rows(kind):
        chance = random.Random(kind)
        return Rows({key: "".join(chance.choices("abcdefghijkl ", k=24)) for key in ("text", "headline")} for _ in range(32))

    return rows(split) if split else {kind: rows(kind) for kind in ("train", "validation")}


class Tokenizer:
    def batch_encode_plus(self, texts, max_length, **_):
        ids = [[ord(letter) % 128 for letter in text][:max_length] for text in texts]
        masks = [[1] * len(row) + [0] * (max_length - len(row)) for row in ids]
        padded = [row + [0] * (max_length - len(row)) for row in ids]
        return {"input_ids": torch.tensor(padded), "attention_mask": torch.tensor(masks)}
