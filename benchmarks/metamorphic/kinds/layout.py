"""What surrounds code: `try`, annotations, comments and line breaks, code that nothing runs, the main function."""

# ruff: noqa: B023 - a refactoring returns before its loops go on

from __future__ import annotations

from random import Random
from typing import Any

import libcst as cst

from .. import names
from ..code import expression, is_import, single, statements, with_body
from ..project import Changes, Place, Project
from .extraction import free, importing, top_imports

REMARKS = ("keep this", "see the paper", "TODO: tune", "as in the reference", "do not change", "note: slow", "tested on 8 GPUs")


def comments_and_breaks(project: Project, rng: Random) -> Changes:
    """The arguments of a call stand on lines of their own, some with comments."""
    for path, code in project.codes():
        for call in code.find(cst.Call):
            if not call.args or code.within(call, cst.FormattedString):
                continue
            if not (yield Place(path, code.text(call))):
                continue
            depth = sum(isinstance(around, cst.IndentedBlock) for around in code.up(call)) + 1

            def line(indent: int, remark: bool) -> cst.ParenthesizedWhitespace:
                comment = cst.Comment(f"# {rng.choice(REMARKS)}") if remark and rng.random() < 0.5 else None
                first = cst.TrailingWhitespace(cst.SimpleWhitespace("  " if comment else ""), comment)
                return cst.ParenthesizedWhitespace(first, [], False, cst.SimpleWhitespace("    " * indent))

            def rewrite(updated: cst.Call) -> cst.Call:
                last = len(updated.args) - 1
                generator = any(isinstance(arg.value, cst.GeneratorExp) and not arg.value.lpar for arg in updated.args)
                args = [
                    arg.with_changes(comma=cst.Comma(whitespace_after=line(depth - (number == last), True)))
                    for number, arg in enumerate(updated.args)
                ]
                args = updated.args if generator else [arg.with_changes(whitespace_after_arg=_none()) for arg in args]
                return updated.with_changes(args=args, whitespace_before_args=line(depth, True))

            return project.changed({path: code.rewritten({call: rewrite})})
    return None


def _none() -> cst.SimpleWhitespace:
    return cst.SimpleWhitespace("")


def commented_statement(project: Project, rng: Random) -> Changes:
    """A statement gets a comment above it, or behind it."""
    for path, code in project.codes():
        for line in code.find(cst.SimpleStatementLine):
            if code.statement(line) is None or line.trailing_whitespace.comment:
                continue
            if not (yield Place(path, code.text(line))):
                continue
            comment = cst.Comment(f"# {rng.choice(REMARKS)}")
            if rng.random() < 0.5:
                new = cst.TrailingWhitespace(cst.SimpleWhitespace("  "), comment)
                return project.changed({path: code.rewritten({line: lambda u: u.with_changes(trailing_whitespace=new)})})
            above = cst.EmptyLine(comment=comment)
            return project.changed(
                {path: code.rewritten({line: lambda u: u.with_changes(leading_lines=[*u.leading_lines, above])})}
            )
    return None


def annotated_function(project: Project, rng: Random) -> Changes:
    """The parameters of a function are annotated."""
    for path, code in project.codes():
        for function in code.find(cst.FunctionDef):
            without = (param for param in function.params.params if not param.annotation)
            plain = [param for param in without if param.name.value not in ("self", "cls")]
            if not plain or function.decorators or not free(code, "typing"):
                continue
            if not (yield Place(path, code.text(function.params))):
                continue
            rewrites: dict[cst.CSTNode, Any] = {}
            for param in plain:
                module = "model" in param.name.value and "torch" in top_imports(code)
                kinds = ("torch.nn.Module", "object") if module else ("typing.Any", "object")
                annotation = cst.Annotation(expression(rng.choice(kinds)))
                equal = cst.AssignEqual() if param.default else cst.MaybeSentinel.DEFAULT
                rewrites[param] = lambda u, a=annotation, e=equal: u.with_changes(annotation=a, equal=e)
            return project.changed({path: importing(code, code.rewritten(rewrites), "typing")})
    return None


def annotations_removed(project: Project, rng: Random) -> Changes:
    """The annotations of a function go, those of its variables too."""
    for path, code in project.codes():
        for function in code.find(cst.FunctionDef):
            params = [param for param in code.find(cst.Param, within=function.params) if param.annotation]
            found = [one for one in code.find(cst.AnnAssign, within=function.body) if code.function(one) is function]
            lines = [one for one in found if one.value and isinstance(one.target, cst.Name)]
            if function.decorators or not (params or lines or function.returns):
                continue
            if not (yield Place(path, code.text(function.params))):
                continue
            rewrites: dict[cst.CSTNode, Any] = {param: lambda u: u.with_changes(annotation=None) for param in params}
            for line in lines:
                rewrites[line] = lambda u: cst.Assign([cst.AssignTarget(u.target)], u.value)
            rewrites[function] = lambda u: u.with_changes(returns=None)
            return project.changed({path: code.rewritten(rewrites)})
    return None


TAILS = (
    "finally:\n    pass\n",
    "except KeyboardInterrupt:\n    raise\n",
    "except RuntimeError as error:\n    raise error\n",
)


def try_around(project: Project, rng: Random) -> Changes:
    """A statement stands in a `try` that raises again, or has an empty `finally`."""
    for path, code in project.codes():
        for line in code.find(cst.SimpleStatementLine, cst.For, cst.With, cst.If, cst.While):
            unfit = isinstance(line, cst.SimpleStatementLine) and not code.has(line, cst.Call)
            if code.statement(line) is not line or unfit or code.in_class_body(line) or is_import(line):
                continue
            tail = rng.choice(TAILS)
            if not (yield Place(path, code.text(line))):
                continue
            def rewrite(updated: Any) -> Any:
                around: Any = statements(f"try:\n    pass\n{tail}")[0]
                inside = cst.IndentedBlock(body=[updated.with_changes(leading_lines=())])
                return around.with_changes(body=inside, leading_lines=updated.leading_lines)

            return project.changed({path: code.rewritten({line: rewrite})})
    return None


def last_call_in_finally(project: Project, rng: Random) -> Changes:
    """The call at the end of a function is made in a `finally`."""
    for path, code in project.codes():
        for function in code.find(cst.FunctionDef):
            body = function.body.body
            last = single(body[-1], cst.Expr) if isinstance(function.body, cst.IndentedBlock) else None
            if len(body) < 2 or not last or not isinstance(last.value, cst.Call):
                continue
            documented = 1 if function.get_docstring() is not None else 0
            declared = [line for line in body[documented:-1] if single(line, cst.Global) or single(line, cst.Nonlocal)]
            kept = [line for line in body[documented:-1] if line not in declared]
            if not kept or any(code.has(line, cst.Return, cst.Yield) for line in kept):
                continue
            if not (yield Place(path, code.text(body[-1]))):
                continue
            def rewrite(updated: Any) -> Any:
                inside = updated.body[documented:-1]
                declared = [line for line in inside if single(line, cst.Global) or single(line, cst.Nonlocal)]
                around = cst.Try(
                    body=cst.IndentedBlock([line for line in inside if line not in declared]),
                    finalbody=cst.Finally(cst.IndentedBlock([updated.body[-1]])),
                )
                return updated.with_changes(body=[*updated.body[:documented], *declared, around])

            return project.changed({path: code.rewritten({function.body: rewrite})})
    return None


DEAD = (
    "def {0}(model, path):\n    model.load_state_dict(torch.load(path))\n    return model.eval()\n",
    "def {0}(model):\n    return sum(parameter.numel() for parameter in model.parameters())\n",
    "def {0}(model, optimizer, path):\n    torch.save((model.state_dict(), optimizer.state_dict()), path)\n",
    "def {0}(net, batch):\n    with torch.no_grad():\n        return net(batch).argmax(-1)\n",
)


def unused_function(project: Project, rng: Random) -> Changes:
    """A function that nothing calls, and that handles a plain model, is added."""
    for path, code in project.codes():
        for node in code.module.body:
            if not isinstance(node, cst.FunctionDef | cst.ClassDef) or "torch" not in code.local_names(None):
                continue
            if not (yield Place(path, "")):
                continue
            name = project.fresh(rng, "load_for_inference", "count_all", "old_save", "predict_batch")
            lines = statements("\n\n" + rng.choice(DEAD).format(name))
            return project.changed({path: code.rewritten({node: lambda updated: [*lines, updated]})})
    return None


def dead_branch(project: Project, rng: Random) -> Changes:
    """A branch that is never taken is put in front of a statement."""
    for path, code in project.codes():
        for line in code.find(cst.SimpleStatementLine):
            function = code.function(line)
            if not function or code.statement(line) is not line or is_import(line) or single(line, cst.Global):
                continue
            documents = isinstance(function.body, cst.IndentedBlock) and line is function.body.body[0]
            models = sorted({"model", "net", "optimizer"} & code.certain(line))
            if documents or not models or single(line, cst.Nonlocal):
                continue
            if not (yield Place(path, code.text(line))):
                continue
            condition = rng.choice(["False", "0", "not True"])
            body = rng.choice([f"print({models[0]})", f"{models[0]}.zero_grad()", "raise RuntimeError('never')"])
            new = statements(f"if {condition}:\n    {body}\n")
            return project.changed({path: code.rewritten({line: lambda updated: [*new, updated]})})
    return None


def second_script(project: Project, rng: Random) -> Changes:
    """A script that uses a model's class plainly is added; nothing runs it."""
    for path, code in project.codes():
        for node in code.module.body:
            if not isinstance(node, cst.ClassDef) or not any("Module" in code.text(base.value) for base in node.bases):
                continue
            if not (yield Place(path, code.text(node.name))):
                continue
            name = node.name.value
            script = project.fresh(rng, "sample", "export", "predict", "count_parameters")
            module = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            text = (
                f"import json\nimport sys\n\nimport torch\nfrom {module} import {name}\n\n\ndef main():\n"
                f"    model = {name}(**json.loads(sys.argv[1]))\n"
                f'    model.load_state_dict(torch.load("model.pt", map_location="cpu"))\n    model.eval()\n'
                f"    with torch.no_grad():\n        print(model(torch.zeros(1, 4)))\n"
                f'    torch.save(model.state_dict(), "exported.pt")\n\n\nif __name__ == "__main__":\n    main()\n'
            )
            return project.changed({f"{script}.py": text})
    return None


def script_into_main(project: Project, rng: Random) -> Changes:
    """The last statements of a script become a function that is called when the script is started."""
    for path, code in project.codes():
        if path not in project.scripts:
            continue
        body = list(code.module.body)
        start = len(body)
        while start and not isinstance(body[start - 1], cst.FunctionDef | cst.ClassDef) and not is_import(body[start - 1]):
            start -= 1
        tail = body[start:]
        if len(tail) < 2 or any(names.jumps([line]) for line in code.tree(*tail)):
            continue
        if not (yield Place(path, code.text(*tail))):
            continue
        bound = sorted(code.names(*tail).bound)
        name = project.fresh(rng, "main", "run_script", "entry")
        lines: list[Any] = [*(statements(f"global {', '.join(bound)}\n") if bound else []), *tail]
        function = with_body(f"def {name}():", lines).with_changes(leading_lines=[cst.EmptyLine(indent=False)] * 2)
        start = statements(f'\n\nif __name__ == "__main__":\n    {name}()\n')
        rewrites: dict[cst.CSTNode, Any] = dict.fromkeys(tail[1:], cst.RemoveFromParent())
        return project.changed({path: code.rewritten(rewrites | {tail[0]: [function, *start]})})
    return None


