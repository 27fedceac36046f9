"""CUDA and C++ files split into top-level declarations, and those that a kernel or a function reaches.

A syntax tree gives the names that a declaration uses, the namespace or class before each, and how many
arguments a call has.  Of several overloads or specialisations of a name one counts: it takes that many
arguments, is in the file that is nearest by includes, is no specialisation, and is the shortest.  The
compiler may choose another by types.  An operator counts where it is used and a name of its parameters is.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

from compare.code_size.pieces import CodePiece, size
from compare.code_size.sources import KERNELS, include_depths, with_includes
from cuda_impl import build

_TOOLS = ("tensor.h",)
_PARSER = Parser(Language(tree_sitter_cuda.language()))
_MACRO = re.compile(rb"\b(?:__\w+__|alignas|[A-Z_]{3,})\s*\((?:[^()]|\([^()]*\))*\)(?=\s+[\w:]+\s*[^\s;])")
"""An attribute or macro before a declaration: the parser, which expands no macro, would not take it."""
_LEFT_OUT = re.compile(rb"#\s*(?:(?:ifdef\s+|(?:el)?if\s+defined\()HOST_BUILD|if\s+0)\b")
_NEVER = re.compile(rb"#\s*if\s+0\b")
_OPENED = (
    *("namespace_definition", "linkage_specification", "declaration_list", "ERROR"),
    *("preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif"),
)
_CLASSES = ("struct_specifier", "class_specifier", "union_specifier")
_DECLARATIONS = (
    *("function_definition", "template_declaration", "declaration", "alias_declaration", "type_definition"),
    *(*_CLASSES, "enum_specifier", "preproc_def", "preproc_function_def"),
)
_NAMES = ("identifier", "type_identifier", "operator_name")
_AROUND_NAME = ("qualified_identifier", "template_function")
_SPECIALISED = ("template_function", "template_type")
_LOCAL = ("parameter_declaration", "optional_parameter_declaration", "declaration", "for_range_loop")
_MANY = 1000
"""More arguments than a call has."""


@dataclass(frozen=True)
class Use:
    """A name in a declaration's code."""

    name: str
    arguments: int | None = None
    """How many a call of it has; None where it is not called."""
    scope: str = ""
    """``inner`` of ``inner::f``"""


@dataclass(frozen=True)
class Declaration:
    """A top-level function, type, constant or macro."""

    piece: CodePiece
    names: tuple[str, ...]
    uses: tuple[Use, ...] = ()
    parameters: range | None = None
    """The numbers of arguments that a function takes; None for all else."""
    is_specialisation: bool = False
    has_body: bool = False
    """Whether it is a function's definition or a class: of several of one name, a use means one."""
    scopes: tuple[str, ...] = ()
    """The namespaces, and the class of a member defined outside of it."""
    operands: frozenset[str] = frozenset()
    """The names in an operator's parameters."""

    def takes(self, use: Use) -> bool:
        return self.parameters is None or use.arguments is None or use.arguments in self.parameters

    def is_used_among(self, names: set[str]) -> bool:
        """Whether it is an operator of one of these names, for operands of another."""
        return bool(self.operands & names and names.intersection(self.names))


@dataclass(frozen=True)
class Unit:
    """Declarations of one or more files."""

    declarations: tuple[Declaration, ...]

    @functools.cached_property
    def named(self) -> dict[str, list[Declaration]]:
        found: dict[str, list[Declaration]] = {}
        for declaration in self.declarations:
            for name in declaration.names:
                found.setdefault(name, []).append(declaration)
        return found

    def reached(self, uses: Iterable[Use]) -> list[CodePiece]:
        """The pieces that these uses reach, directly or not, in breadth-first order."""
        found = dict.fromkeys(one for use in uses for one in self._meant(use))
        waiting, names = list(found), set[str]()
        while waiting:
            user = waiting.pop(0)
            names |= {use.name for use in user.uses}
            used = dict.fromkeys(one for use in user.uses for one in self._meant(use, user))
            if not waiting:
                used |= dict.fromkeys(one for one in self.declarations if one.is_used_among(names))
            waiting += (one for one in used if one not in found)
            found |= used
        return [one.piece for one in found]

    def reachable(self, names: Iterable[str]) -> list[CodePiece]:
        """The pieces that these names may reach: every overload and specialisation counts."""
        seen, pieces = set(names), dict[CodePiece, None]()
        waiting = list(seen)
        while waiting:
            for one in self.named.get(waiting.pop(), []):
                pieces[one.piece] = None
                new = {use.name for use in one.uses} - seen
                seen |= new
                waiting += new
        return list(pieces)

    def meant(self, uses: Iterable[Use]) -> list[CodePiece]:
        """The pieces that these uses name themselves."""
        return list(dict.fromkeys(one.piece for use in uses for one in self._meant(use)))

    def _meant(self, use: Use, user: Declaration | None = None) -> list[Declaration]:
        """What a use means: the declarations in the nearest file, of overloads one, and not its user."""
        every = self._visible(use, user.scopes if user else ())
        if use.name.endswith("::"):
            return every
        fitting = [one for one in every if one.takes(use)] or every
        file = user.piece.file if user else ""
        depths = include_depths(Path(file)) if file else {Path(): 0}
        by_depth: dict[float, list[Declaration]] = {}
        for one in fitting:
            by_depth.setdefault(depths.get(Path(one.piece.file), math.inf), []).append(one)
        near = by_depth[min(by_depth)] if by_depth else []
        overloads = [one for one in near if one.has_body and one is not user]
        if len(overloads) < 2:
            return near
        chosen = min(overloads, key=lambda one: (one.is_specialisation, size([one.piece]).tokens))
        return [one for one in near if one is chosen or not one.has_body]

    def _visible(self, use: Use, scopes: tuple[str, ...]) -> list[Declaration]:
        """Those of a name in the scope that is written before it, else in one that is around its use."""
        every = self.named.get(use.name, [])
        if use.scope:
            return [one for one in every if use.scope in (*one.scopes, *one.names)]
        return [one for one in every if scopes[: len(one.scopes)] == one.scopes] or every


def is_source(text: str) -> bool:
    """Whether a launch's source is CUDA text, not the name of a kernel file."""
    return "__global__" in text


def unit_of(source: str) -> Unit:
    """An op's kernel file or CUDA text, with the kernel files that it includes."""
    if not is_source(source):
        file = KERNELS / f"{source}.cuh"
        if not file.resolve().is_relative_to(KERNELS):  # a user's worker says it
            raise ValueError(f"{source!r} is no kernel of the project")
        return file_unit(file)
    includes = build.included(source)
    return _united([text_unit(source), *(text_unit(text, str(path)) for path, text in includes.items())])


def file_unit(path: Path) -> Unit:
    """A file with all that it includes, without those that serve every op."""
    files = sorted(file for file in with_includes(path) if file.name not in _TOOLS)
    return _united(text_unit(file.read_text(encoding="utf-8"), str(file)) for file in files)


def _united(units: Iterable[Unit]) -> Unit:
    return Unit(tuple(dict.fromkeys(one for unit in units for one in unit.declarations)))


@functools.cache
def text_unit(text: str, file: str = "") -> Unit:
    """The declarations of source text, without its includes."""
    code = text.encode()
    tree = _PARSER.parse(_MACRO.sub(lambda match: re.sub(rb"\S", b" ", match[0]), code))
    return Unit(tuple(_declaration(node, code, file, scopes) for node, scopes in _top_level(tree.root_node)))


def _top_level(node: Node, scopes: tuple[str, ...] = ()) -> Iterator[tuple[Node, tuple[str, ...]]]:
    """Declarations and macros, each with its namespaces.

    Conditional parts are opened, but those of the host build and those behind ``#if 0``.
    """
    for child in node.named_children:
        if child.type in _OPENED:
            opened = child.child_by_field_name("alternative") if _LEFT_OUT.match(_bytes(child)) else child
            name = child.child_by_field_name("name") if child.type == "namespace_definition" else None
            inner = (*scopes, *(_text(name).split("::") if name else ()))
            yield from _top_level(opened, inner) if opened else ()
        elif child.type in _DECLARATIONS:
            yield child, scopes


def _declaration(node: Node, code: bytes, file: str, scopes: tuple[str, ...]) -> Declaration:
    behind = node.next_sibling
    end = behind.end_byte if behind is not None and behind.type == ";" else node.end_byte
    text = code[node.start_byte : end]
    piece = CodePiece(text.decode().strip(), "cuda", file)
    inner = node.named_children[-1] if node.type == "template_declaration" else node
    if inner.type.startswith("preproc"):
        words = [use for use in _words(text) if use.name != "define"]
        return Declaration(piece, (words[0].name,), tuple(words[1:]))
    heads = inner.children_by_field_name("declarator") or inner.children_by_field_name("name")
    parts = [part for head in heads for part in _parts(head)]
    named = [part for part in (*parts, *_enumerators(inner)) if part.type in _NAMES]
    names = tuple(_text(part).replace(" ", "") for part in named)
    of = tuple(scope for part in parts if part.type == "qualified_identifier" if (scope := _scope(part)))
    members = [Use(f"{name}::") for name in names if inner.type in _CLASSES]
    if of:  # counts with its class
        names = (*(name for name in names if name != of[-1]), f"{of[-1]}::")
    used = dict.fromkeys((*_uses(node), *members, *_words(b" ".join(_MACRO.findall(text)))))
    function = next((part for part in parts if part.type == "function_declarator"), None)
    is_operator = any(part.type == "operator_name" for part in parts)
    return Declaration(
        piece,
        names,
        tuple(use for use in used if use.arguments is not None or use.name not in names),
        _parameters(function) if function else None,
        any(part.type in _SPECIALISED for part in parts),
        inner.child_by_field_name("body") is not None,
        (*scopes, *of),
        frozenset(use.name for use in _uses(function)) if function and is_operator else frozenset(),
    )


def _parts(head: Node) -> Iterator[Node]:
    """A declarator and those within it: of ``*f(int)`` the pointer, the function and its name."""
    yield head
    inner = head.child_by_field_name("declarator") or head.child_by_field_name("name")
    if inner is not None:
        yield from _parts(inner)
    elif head.type in ("reference_declarator", "parenthesized_declarator", "structured_binding_declarator"):
        for part in head.named_children:
            yield from _parts(part)


def _enumerators(node: Node) -> list[Node]:
    """The names of an enumeration's values; none of other declarations."""
    body = node.child_by_field_name("body") if node.type == "enum_specifier" else None
    values = body.named_children if body else ()
    return [value.named_children[0] for value in values if value.type == "enumerator"]


def _parameters(function: Node) -> range:
    parameters = function.child_by_field_name("parameters")
    kinds = [child.type for child in parameters.named_children] if parameters else []
    least, optional = (kinds.count(f"{kind}parameter_declaration") for kind in ("", "optional_"))
    return range(least, _MANY if "variadic_parameter_declaration" in kinds else least + optional + 1)


def _uses(node: Node) -> list[Use]:
    """The names in code that are no parameters and variables of its own."""
    found: list[Use] = []
    own: set[str] = set()
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if each.type == "preproc_if" and _NEVER.match(_bytes(each)):
            waiting += each.children_by_field_name("alternative")
            continue
        waiting += reversed(each.children)
        if operator := each.child_by_field_name("operator"):
            found.append(Use(f"operator{_text(operator)}"))
        if each.type in _LOCAL and each is not node:
            heads = each.children_by_field_name("declarator")
            own |= {_text(part) for head in heads for part in _parts(head) if part.type in _NAMES}
        elif each.type == "type_parameter_declaration":
            own.add(_text(each.named_children[-1]))
        elif each.type in ("identifier", "type_identifier", "namespace_identifier"):
            found.append(_use(each))
    return [use for use in found if use.name not in own]


def _use(name: Node) -> Use:
    """A use of a name, with its scope and the number of a call's arguments, as in ``inner::f<T>(x)``."""
    scope, node, parent = "", name, name.parent
    while parent and parent.type in _AROUND_NAME and _is(node, parent, "name"):
        scope = scope or _scope(parent)
        node, parent = parent, parent.parent
    if parent is None or parent.type != "call_expression" or not _is(node, parent, "function"):
        return Use(_text(name), None, scope)
    arguments = parent.child_by_field_name("arguments")
    count = sum(child.type != "comment" for child in arguments.named_children) if arguments else None
    return Use(_text(name), count, scope)


def _scope(qualified: Node) -> str:
    """``inner`` of ``inner::f``, ``Pair`` of ``Pair<T>::f``; empty if a name has no scope."""
    scope = qualified.child_by_field_name("scope")
    name = scope.child_by_field_name("name") if scope else None
    return _text(name or scope) if scope else ""


def _is(node: Node, parent: Node, field: str) -> bool:
    return parent.child_by_field_name(field) == node


def _bytes(node: Node) -> bytes:
    return node.text or b""


def _text(node: Node) -> str:
    return _bytes(node).decode()


def _words(text: bytes) -> list[Use]:
    return [Use(word.decode()) for word in dict.fromkeys(re.findall(rb"[A-Za-z_]\w*", text))]


@dataclass(frozen=True)
class HostCode:
    """The code of a variant in ``pybind/<op>.cu``."""

    binding: CodePiece
    """Its own statement in the module."""
    module: CodePiece
    """The module without the statements of variants."""
    launch: list[CodePiece]
    """What the binding names: the exported function."""
    others: list[CodePiece]
    """All that the exported function uses."""


def host_code(path: Path, variant: str) -> HostCode:
    """The module of a ``pybind/<op>.cu`` with this variant's statement, and the code that it exports."""
    unit = Unit(tuple(one for one in file_unit(path).declarations if "__global__" not in one.piece.text))
    (module,) = unit.named["PYBIND11_MODULE"]
    head, _, body = module.piece.text.partition("{")
    tree = _PARSER.parse(body.rpartition("}")[0].encode())
    statements = [node for node in tree.root_node.named_children if node.type != "comment"]
    of_variant = re.compile(rf'm\s*\.\s*def\s*\(\s*"{re.escape(variant)}"')
    own = [node for node in statements if of_variant.match(_text(node))]
    rest = [node for node in statements if not re.match(r"m\s*\.\s*def\b", _text(node))]
    exported = [use for node in own for use in _uses(node)]
    launch = unit.meant(exported)
    reached = unit.reached([*exported, *(use for node in rest for use in _uses(node))])
    file = module.piece.file
    return HostCode(
        CodePiece("\n".join(map(_text, own)), "cuda", file),
        CodePiece("\n".join([f"{head.strip()} {{", *map(_text, rest), "}"]), "cuda", file),
        launch,
        [piece for piece in reached if piece not in launch],
    )
