"""Rules by the names that people write: an id or a family, in any case."""

from __future__ import annotations

from ..transforms.findings import UserError
from ..transforms.rule import Rule, all_rules
from ..transforms.text.rule_ids import ids_like


def rules_called(name: str) -> list[Rule]:
    """The rule of an id (`fs301`), or those of a family (`FS3`). Raises UserError with what may have been meant."""
    wanted = name.strip().upper()
    found = [rule for rule in all_rules() if wanted and rule.id.startswith(wanted)]
    if found:
        return found
    close = ids_like(wanted, [rule.id for rule in all_rules()], 3)
    meant = f"; did you mean {' or '.join(close)}?" if close else ";"
    raise UserError(f"no rule is called {name!r}{meant} `to-fsdp2 rules` lists them")


def complete(beginning: str) -> list[str]:
    """The ids that a shell offers."""
    return [rule.id for rule in all_rules() if rule.id.startswith(beginning.upper())]
