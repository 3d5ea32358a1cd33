"""to-fsdp2: PyTorch training code, from FSDP1 and DDP to FSDP2.

`to_fsdp2.migrate.api` is what other programs may rely on; everything else may change from release to release.
"""
