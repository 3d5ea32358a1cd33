"""Local files only."""

from os import listdir  # noqa: F401
from os.path import basename, dirname, exists, isdir, join  # noqa: F401


def BlobFile(path, mode="r"):
    return open(path, mode)
