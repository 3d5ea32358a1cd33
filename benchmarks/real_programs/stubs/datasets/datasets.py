"""A preference data set of random words, in the form of Anthropic/hh-rlhf."""

import random


def load_dataset(name, *_, split="train", **__):
    assert name == "Anthropic/hh-rlhf"
    chance = random.Random(split)

    def words(count):
        return " ".join(f"w{chance.randrange(50)}" for _ in range(count))

    prompts = [f"\n\nHuman: {words(4)}\n\nAssistant:" for _ in range(24)]
    return [{"chosen": f"{prompt} {words(5)}", "rejected": f"{prompt} {words(6)}"} for prompt in prompts]


class logging:
    @staticmethod
    def disable_progress_bar(): ...

    @staticmethod
    def set_verbosity_error(): ...
