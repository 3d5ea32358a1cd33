"""Expressions in several steps or in one, methods by name, other spellings of texts."""

from __future__ import annotations

from random import Random

import libcst as cst

from ..code import Code, before, expression, single, statements
from ..evaluation import evaluated_first, pure
from ..project import Changes, Place, Project
from ..uses import local_uses

NAMES = ("value", "part", "piece", "tmp", "current", "inner", "first", "given")


def intermediate_variable(project: Project, rng: Random) -> Changes:
    """A part of an expression gets a name in front of the statement."""
    for path, code in project.codes():
        for node in code.find(cst.Call, cst.Attribute, cst.BinaryOperation, cst.Comparison, cst.Subscript, cst.IfExp):
            parent = code.parents[node]
            whole = isinstance(parent, cst.Expr | cst.Return | cst.Assign | cst.AnnAssign)
            if whole or isinstance(parent, cst.AssignTarget | cst.Decorator) or code.in_class_body(node):
                continue
            if isinstance(parent, cst.Attribute) and not isinstance(node, cst.Call):
                continue
            if code.within(node, cst.FormattedString):
                continue
            statement = evaluated_first(code, node)
            if statement is None or _is_super(code, node):
                continue
            if not (yield Place(path, code.text(node))):
                continue
            name = project.fresh(rng, *NAMES)
            line = statements(f"{name} = {code.value(node)}\n")
            return project.changed({path: code.rewritten({node: cst.Name(name), statement: before(*line)})})
    return None


def _is_super(code: Code, node: cst.CSTNode) -> bool:
    return "super()" in code.text(node)


def inlined_variable(project: Project, rng: Random) -> Changes:
    """A variable that the next statement alone reads, once, is replaced by its value."""
    for path, code in project.codes():
        for line in code.find(cst.SimpleStatementLine):
            assign = single(line, cst.Assign)
            function = code.function(line)
            if not assign or not function or code.statement(line) is not line or len(assign.targets) != 1:
                continue
            target = assign.targets[0].target
            block, index = code.block(line)
            last = index + 1 >= len(block.body)
            if last or not isinstance(target, cst.Name) or isinstance(assign.value, cst.Tuple | cst.Yield):
                continue
            uses = local_uses(code, function, target.value)
            if uses is None or len(uses) != 2:
                continue
            use = next((one for one in uses if one is not target), None)
            if use is None or code.stored(use) or isinstance(code.parents[use], cst.AugAssign | cst.Del):
                continue
            formatted = code.within(use, cst.FormattedString)
            if evaluated_first(code, use) is not block.body[index + 1] or formatted or line.trailing_whitespace.comment:
                continue
            if not (yield Place(path, code.text(line))):
                continue
            value = expression(f"({code.text(assign.value)})")
            return project.changed({path: code.rewritten({line: cst.RemoveFromParent(), use: value})})
    return None


def method_by_name(project: Project, rng: Random) -> Changes:
    """`x.m(…)` becomes `getattr(x, "m")(…)`."""
    for path, code in project.codes():
        for call in code.find(cst.Call):
            target = call.func
            if not isinstance(target, cst.Attribute) or not isinstance(target.value, cst.Name | cst.Attribute):
                continue
            decorator = code.within(call, cst.Decorator, cst.FormattedString)
            if decorator or target.attr.value.startswith("__"):
                continue
            if not (yield Place(path, code.text(call))):
                continue
            new = expression(f'getattr({code.text(target.value)}, "{target.attr.value}")')
            return project.changed({path: code.rewritten({target: new})})
    return None


def bound_method(project: Project, rng: Random) -> Changes:
    """`x.m(…)` becomes `f = x.m` and `f(…)`."""
    for path, code in project.codes():
        for call in code.find(cst.Call):
            target = call.func
            if not isinstance(target, cst.Attribute) or not pure(target) or code.in_class_body(call):
                continue
            if code.within(call, cst.FormattedString):
                continue
            statement = evaluated_first(code, target)
            if statement is None or _is_super(code, target):
                continue
            if not (yield Place(path, code.text(call))):
                continue
            name = project.fresh(rng, f"{target.attr.value}_fn", "method", "fn", "call_it")
            line = statements(f"{name} = {code.value(target)}\n")
            return project.changed({path: code.rewritten({target: cst.Name(name), statement: before(*line)})})
    return None


def text_by_format(project: Project, rng: Random) -> Changes:
    """An f-string becomes `"…".format(…)`."""
    for path, code in project.codes():
        for node in code.find(cst.FormattedString):
            around = code.parents[node]
            parts = [part for part in node.parts if isinstance(part, cst.FormattedStringExpression)]
            specs = (one for part in parts for spec in part.format_spec or () for one in code.below(spec))
            if isinstance(around, cst.ConcatenatedString) or any(isinstance(one, cst.FormattedStringExpression) for one in specs):
                continue
            if any(part.equal for part in parts) or code.within(node, cst.FormattedString):
                continue
            if not (yield Place(path, code.text(node))):
                continue
            text = ""
            for part in node.parts:
                if isinstance(part, cst.FormattedStringText):
                    text += part.value
                elif isinstance(part, cst.FormattedStringExpression):
                    spec = ":" + code.text(*part.format_spec) if part.format_spec else ""
                    text += "{" + (f"!{part.conversion}" if part.conversion else "") + spec + "}"
            start = node.start.replace("f", "").replace("F", "")
            given = ", ".join(code.text(part.expression) for part in parts)
            new = expression(f"{start}{text}{node.end}.format({given})")
            return project.changed({path: code.rewritten({node: new})})
    return None


def lambda_to_function(project: Project, rng: Random) -> Changes:
    """A lambda becomes a function that is defined in front of the statement."""
    for path, code in project.codes():
        for node in code.find(cst.Lambda):
            statement = code.statement(node)
            inside = code.within(node, cst.Lambda, cst.BaseComp, cst.FormattedString)
            if statement is None or inside or code.in_class_body(node):
                continue
            if isinstance(statement, cst.BaseCompoundStatement) and not isinstance(statement, cst.If | cst.For | cst.With):
                continue
            if isinstance(code.parents[statement], cst.If) or code.has(node.params, cst.Annotation):
                continue
            if not (yield Place(path, code.text(node))):
                continue
            name = project.fresh(rng, "choose", "compute", "pick", "inner_fn")
            definition = statements(f"def {name}({code.text(node.params).strip()}):\n    return {code.value(node.body)}\n")
            return project.changed({path: code.rewritten({node: cst.Name(name), statement: before(*definition)})})
    return None
