"""The JSON contract of scan, diff, apply and check, as the package ships it."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

SCHEMA: dict[str, Any] = json.loads(files("to_fsdp2.migrate").joinpath("schemas/migration.json").read_text())
