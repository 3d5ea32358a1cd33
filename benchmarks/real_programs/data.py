"""Data made on the fly for the recipes: tokens, text, pictures, sound."""

from __future__ import annotations

import pickle
import random
from pathlib import Path


def tokens(vocabulary: int, count: int) -> list[int]:
    return random.Random(0).choices(range(vocabulary), k=count)


def token_files(folder: Path, vocabulary: int = 65, count: int = 4000) -> None:
    """nanoGPT's data: train.bin and val.bin of 16-bit numbers, and meta.pkl."""
    import numpy

    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train.bin", "val.bin"):
        numpy.array(tokens(vocabulary, count), dtype=numpy.uint16).tofile(folder / name)
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": vocabulary, "itos": {}, "stoi": {}}))


def image_folder(folder: Path, size: int, splits: tuple[str, ...] = ("",), classes: int = 2, each: int = 8) -> None:
    """Pictures of noise in torchvision's ImageFolder layout."""
    import numpy
    from PIL import Image  # pyright: ignore[reportMissingImports]

    generator = numpy.random.default_rng(0)
    for split in splits:
        for label in range(classes):
            place = folder / split / f"class{label}"
            place.mkdir(parents=True, exist_ok=True)
            for number in range(each):
                pixels = generator.integers(0, 255, (size, size, 3), dtype=numpy.uint8)
                Image.fromarray(pixels).save(place / f"{label}_{number}.png")


def text_file(path: Path, characters: int = 600) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(random.Random(0).choices("abcdefghij \n", k=characters)))
