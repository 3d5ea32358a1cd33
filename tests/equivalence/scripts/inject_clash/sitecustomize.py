"""A user's sitecustomize beside the script: Python runs it only if its folder is on PYTHONPATH."""

import os

NAME = "the user's sitecustomize"
os.environ["USER_SITECUSTOMIZE"] = "has run"
