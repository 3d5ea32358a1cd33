"""`to-fsdp2 rules`: the rules, and one rule with its reasons and examples."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import typer
from rich.syntax import Syntax
from rich.text import Text

from ...transforms.rule import Rule, all_rules
from .. import exits, rule_reference
from ..rule_names import complete, rules_called
from ..terminal import Terminal, write_stdout

RuleFormat = Annotated[Literal["text", "markdown", "json"], typer.Option("--format", help="markdown: one page with all.")]
RuleId = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="A rule, as FS301, or a family, as FS3.", autocompletion=complete)
]


def rules(rule_id: RuleId = None, format: RuleFormat = "text") -> int:
    """List the rules, or explain one with before and after examples."""
    chosen = rules_called(rule_id) if rule_id else list(all_rules())
    if format == "json":
        document = {"tool": "to-fsdp2", "schema": 2, "kind": "rules", "rules": [_data(rule) for rule in chosen]}
        write_stdout((json.dumps(document, indent=2) + "\n").encode())
        return exits.DONE
    if format == "markdown":
        write_stdout(rule_reference.render(chosen).encode())
        return exits.DONE
    console = Terminal()
    if rule_id and len(chosen) == 1:
        _explain(chosen[0], console)
    else:
        for rule in chosen:
            line = Text.assemble((rule.id, "cyan"), f"  {rule_reference.best_level(rule).value:<6}  ", rule.title)
            console.print(line, soft_wrap=True, highlight=False)
    return exits.DONE


def _data(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "title": rule.title,
        "level": rule_reference.best_level(rule).value,
        "why": rule.why,
        "advice": rule.advice,
        "symbols": list(rule.symbols),
        "examples": [
            {"before": e.before, "after": e.after, "level": e.level.value, "note": " ".join(rule_reference.notes(e))}
            for e in rule.examples
        ],
        "sources": list(rule.sources),
    }


def _explain(rule: Rule, console: Terminal) -> None:
    console.print(Text.assemble((rule.id, "bold cyan"), " ", (rule.title, "bold")), highlight=False)
    console.print(Text(rule_reference.best_level(rule).value, style="dim"))
    for paragraph in (rule.why, rule.advice):
        if paragraph:
            console.print()
            console.print(Text(paragraph), highlight=False)
    for example in rule.examples:
        for note in rule_reference.notes(example):
            console.print()
            console.print(Text(note), highlight=False)
        changed = example.after != example.before
        texts = [("Before", example.before), ("After", example.after)] if changed else [("Left alone", example.before)]
        for title, code in texts:
            console.print()
            console.print(Text(title, style="bold"))
            if console.is_terminal:
                console.print(Syntax(code.rstrip("\n"), "python", background_color="default"))
            else:
                console.print(Text(code.rstrip("\n") or "(nothing)"), soft_wrap=True, highlight=False)
    if rule.sources:
        console.print()
        console.print(Text("Sources", style="bold"))
        for source in rule.sources:
            console.print(Text(source), soft_wrap=True, highlight=False)
