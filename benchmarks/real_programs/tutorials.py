"""PyTorch's own examples."""

from __future__ import annotations

from pathlib import Path

from . import data
from .recipe import Recipe

TUTORIAL = "distributed/ddp-tutorial-series"
T5_SIZES = "vocab_size=128, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4"
T5_SAVES = """save_optimizer: bool=True
    verbose: bool=False
    checkpoint_folder: str="out"
    model_save_name: str="t5"
    optimizer_name: str="optimizer\""""
T5_MODEL = """        from transformers import T5Config
        model = T5ForConditionalGeneration(T5Config(SIZES, decoder_start_token_id=0))
        import nlp
        tokenizer = nlp.Tokenizer()"""


def mingpt_text(folder: Path) -> None:
    data.text_file(folder / "text.txt", 400)


def small_pictures(folder: Path) -> None:
    data.image_folder(folder / "pictures", 64, ("train", "val"))


EXAMPLES = (
    Recipe(
        name="ddp example",
        repository="pytorch/examples",
        folder="distributed/ddp",
        command="example.py",
    ),
    Recipe(
        name="ddp-tutorial multigpu",
        repository="pytorch/examples",
        folder=TUTORIAL,
        command="multigpu.py 3 1 --batch_size 128",
    ),
    Recipe(
        name="ddp-tutorial multigpu_torchrun",
        repository="pytorch/examples",
        folder=TUTORIAL,
        command="multigpu_torchrun.py 3 1 --batch_size 128",
        resume="",
    ),
    Recipe(
        name="minGPT-ddp",
        repository="pytorch/examples",
        folder="distributed/minGPT-ddp/mingpt",
        prepare=mingpt_text,
        packages=("hydra-core", "fsspec"),
        stubs=("boto3",),
        command="""
            main.py data_config.path=text.txt data_config.truncate=1.0 data_config.block_size=16 gpt_config.n_layer=2
            gpt_config.n_head=2 gpt_config.n_embd=16 trainer_config.max_epochs=2 trainer_config.batch_size=48
            trainer_config.data_loader_workers=0 trainer_config.save_every=1 trainer_config.use_amp=False
        """,
        resume="trainer_config.max_epochs=4",
    ),
    Recipe(
        name="imagenet",
        repository="pytorch/examples",
        folder="imagenet",
        prepare=small_pictures,
        packages=("torchvision", "pillow"),
        replace={
            "main.py": (
                ("best_acc1 = best_acc1.to(args.gpu)", "pass"),  # what was saved is a number
                ("RandomResizedCrop(224)", "RandomResizedCrop(32)"),
                ("Resize(256)", "Resize(40)"),
                ("CenterCrop(224)", "CenterCrop(32)"),
            )
        },
        command="""
            main.py pictures -a resnet18 --epochs 2 -b 8 -j 0 --world-size 1 --rank 0 --multiprocessing-distributed
            --dist-url tcp://127.0.0.1:29871 --seed 1
        """,
        resume="--resume checkpoint.pth.tar --epochs 3",
        options="--launcher python",
    ),
    Recipe(
        name="T5 FSDP",
        repository="pytorch/examples",
        folder="distributed/FSDP",
        packages=("transformers", "pandas"),
        stubs=("nlp",),
        replace={
            "utils/train_utils.py": (
                (
                    "        model = T5ForConditionalGeneration.from_pretrained(model_name)",
                    T5_MODEL.replace("SIZES", T5_SIZES),
                ),
                ("        tokenizer =  T5Tokenizer.from_pretrained(model_name, legacy=False)\n", ""),
            ),
            "utils/environment.py": (("from pkg_resources import packaging", "import packaging.version"),),
            "summarization_dataset.py": (("    AdamW,\n", ""),),
            "T5_training.py": (
                ("'train', 1500, 512, 150", "'train', 16, 16, 8"),
                ("'validation', 300, 512, 150", "'validation', 8, 16, 8"),
                ("'num_workers': 2", "'num_workers': 0"),
            ),
            "configs/training.py": (
                ("save_model: bool=False", "save_model: bool=True"),
                ("mixed_precision: bool=True", "mixed_precision: bool=False"),
            ),
            "configs/fsdp.py": (("save_optimizer: bool=False", T5_SAVES),),
        },
        command="T5_training.py --batch-size 4 --test-batch-size 4 --epochs 2",
    ),
)
