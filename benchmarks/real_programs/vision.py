"""Pictures."""

from __future__ import annotations

from pathlib import Path

from . import data
from .recipe import Recipe

LOAD = "    return th.load(path, **kwargs)"
PICTURES = ("timm", "torchvision", "pillow")


def train_pictures(folder: Path) -> None:
    data.image_folder(folder / "pictures", 40, ("train", "val"))


def pictures(folder: Path) -> None:
    data.image_folder(folder / "pictures", 32)


def diffusion_transformer(name: str, model: str, more: str = "") -> Recipe:
    """DiT and SiT, which grew out of it."""
    return Recipe(
        name=name,
        repository={"DiT": "facebookresearch/DiT", "SiT": "willisma/SiT"}[name],
        prepare=pictures,
        packages=PICTURES,
        stubs=("diffusers", "wandb", "torchdiffeq"),
        replace={
            "train.py": (("choices=[256, 512], default=256", "choices=[64], default=64"),),
            "models.py": (
                (
                    "return " + name + "(depth=12, hidden_size=384, patch_size=8, num_heads=6",
                    "return " + name + "(depth=2, hidden_size=48, patch_size=8, num_heads=6",
                ),
            ),
        },
        command=f"""
            train.py --data-path pictures --model {model} --image-size 64 --num-classes 2 --epochs 3 --global-batch-size 8
            --num-workers 0 --log-every 2 --ckpt-every 3{more}
        """,
        environment={"ENTITY": "nobody", "PROJECT": "none"},
    )


VISION = (
    Recipe(
        name="MAE",
        repository="facebookresearch/mae",
        prepare=train_pictures,
        packages=(*PICTURES, "tensorboard"),
        replace={
            "util/misc.py": (("from torch._six import inf", "from torch import inf"),),
            "util/pos_embed.py": (("np.float)", "np.float64)"),),
            "main_pretrain.py": (
                ('assert timm.__version__ == "0.3.2"  # version check\n', ""),
                ("optim_factory.add_weight_decay", "optim_factory.param_groups_weight_decay"),
                ("import timm.optim.optim_factory as", "import timm.optim as"),
            ),
            "models_mae.py": (
                ("qk_scale=None, ", ""),
                (
                    "patch_size=16, embed_dim=768, depth=12, num_heads=12",
                    "patch_size=16, img_size=32, embed_dim=48, depth=2, num_heads=4",
                ),
                ("decoder_embed_dim=512, decoder_depth=8", "decoder_embed_dim=32, decoder_depth=2"),
            ),
        },
        command="""
            main_pretrain.py --batch_size 4 --epochs 2 --accum_iter 2 --model mae_vit_base_patch16 --input_size 32
            --norm_pix_loss --data_path pictures --output_dir out --log_dir out --num_workers 0 --warmup_epochs 1
        """,
        resume="--resume {checkpoint} --epochs 4",
        environment={"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},  # its files hold the arguments
    ),
    Recipe(
        name="guided-diffusion",
        repository="openai/guided-diffusion",
        prepare=pictures,
        packages=("pillow",),
        stubs=("mpi4py", "blobfile"),
        # Rank 0 alone calls this at first, which MPI's small messages forgive.
        replace={"guided_diffusion/dist_util.py": (("    chunk_size = 2 ** 30", f"{LOAD}\n    chunk_size = 2 ** 30"),)},
        command="""
            -m scripts.image_train --data_dir pictures --image_size 32 --num_channels 32 --num_res_blocks 1 --channel_mult
            1,2 --num_heads 2 --attention_resolutions 16 --diffusion_steps 20 --batch_size 4 --microbatch 2 --lr 1e-3
            --save_interval 3 --log_interval 2 --class_cond False --ema_rate 0.9
        """,
        resume="--resume_checkpoint out/model000003.pt",
        environment={"DIFFUSION_TRAINING_TEST": "1", "OPENAI_LOGDIR": "out"},
    ),
    diffusion_transformer("DiT", "DiT-S/8"),
    diffusion_transformer("SiT", "SiT-S/8", " --sample-every 100"),
    Recipe(
        name="edm",
        repository="NVlabs/edm",
        prepare=pictures,
        packages=("click", "pillow", "scipy", "psutil", "requests"),
        replace={
            "train.py": (("max(int(opts.duration * 1000), 1)", "opts.duration"),),
            "torch_utils/misc.py": (("super().__init__(dataset)", "super().__init__()"),),
        },
        command="""
            train.py --outdir=out --nosubdir --data=pictures --arch=ddpmpp --duration=0.032 --batch=8 --batch-gpu=2
            --cbase=8 --cres=1,2 --augment=0 --seed=1 --workers=1 --tick=1 --snap=1 --dump=1 --cache=True
        """,
        resume="--resume=out/training-state-000000.pt --duration=0.064",
        environment={"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},  # its files hold modules
    ),
)
