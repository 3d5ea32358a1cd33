"""The text of libcst trees, with where every node stands in it; a statement that stays is printed once."""

from __future__ import annotations

import libcst as cst
from libcst._nodes.internal import CodegenState  # what ``Module.code`` prints with; metadata of libcst takes three times as long

Span = tuple[int, int]


class Printed:
    """The text of a module, and of its top-level statements, which are the same objects in a rewritten one if they stay."""

    def __init__(self, module: cst.Module) -> None:
        state = _Spans(module)
        module._codegen(state)
        self.text = "".join(state.tokens)
        self.spans = state.spans
        """Where nodes stand, without the white space and comments around them, in the order in which they end."""
        self._texts = {node: self.text[start:end] for node, (start, end) in state.whole.items()}

    def forget_spans(self) -> None:
        """Lets go of every node, once nothing is looked for by its place."""
        self.spans = {}

    def of(self, module: cst.Module, statement: cst.CSTNode) -> str:
        """The text of a statement at the top level of a module, with the lines above it."""
        if statement not in self._texts:
            self._texts[statement] = module.code_for_node(statement)
        return self._texts[statement]

    def code(self, module: cst.Module) -> str:
        """The text of a module of which some statements may be known."""
        if not module.has_trailing_newline or not module.body:
            return module.code
        around = (*module.header, *module.body, *module.footer)
        return "".join(self.of(module, node) for node in around)


class _Spans(CodegenState):
    """Prints a tree and notes where its nodes begin and end."""

    def __init__(self, module: cst.Module) -> None:
        super().__init__(module.default_indent, module.default_newline)
        self.at = 0
        self.begun: list[int] = []
        self.spans: dict[cst.CSTNode, Span] = {}
        self.whole: dict[cst.CSTNode, Span] = {}
        """Where the nodes right below the module stand, with all that belongs to them."""

    def add_indent_tokens(self) -> None:
        self.tokens.extend(self.indent_tokens)
        self.at += sum(map(len, self.indent_tokens))

    def add_token(self, value: str) -> None:
        self.tokens.append(value)
        self.at += len(value)

    def before_codegen(self, node: cst.CSTNode) -> None:
        self.begun.append(self.at)

    def after_codegen(self, node: cst.CSTNode) -> None:
        start = self.begun.pop()
        self.spans.setdefault(node, (start, self.at))
        if len(self.begun) == 1:
            self.whole[node] = start, self.at

    def record_syntactic_position(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, node: cst.CSTNode, *, start_node: cst.CSTNode | None = None, end_node: cst.CSTNode | None = None
    ) -> _Recorded:
        return _Recorded(self, node, start_node, end_node)


class _Recorded:
    """Notes the place of what is printed inside of ``with``: a node without what surrounds it."""

    def __init__(self, state: _Spans, node: cst.CSTNode, first: cst.CSTNode | None, last: cst.CSTNode | None) -> None:
        self.state = state
        self.node = node
        self.first = first
        self.last = last

    def __enter__(self) -> None:
        self.start = self.state.at

    def __exit__(self, *_: object) -> None:
        spans = self.state.spans
        start = self.start if self.first is None else spans[self.first][0]
        spans[self.node] = start, self.state.at if self.last is None else spans[self.last][1]
