"""Prints the reference of the public names as Markdown, read from the source. Called by `scripts/sdk`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent / "src" / "windlass"
#: Modules with public names of their own: what users import, and the file.
OTHERS = {
    "windlass.testing": "testing/__init__.py",
    "windlass.contrib.fastapi": "contrib/fastapi.py",
    "windlass.contrib.django": "contrib/django/__init__.py",
    "windlass.contrib.celery": "contrib/celery.py",
    "windlass.contrib.opentelemetry": "contrib/opentelemetry.py",
}
#: Methods that the worker and operations call.
INTERNAL = {
    "Context": {"mark_cancelled", "start", "take_facts", "flush"},
    "Workflow": {"opened", "children", "record", "suspend_for"},
    "Operation": {"start"},
    "Child": {"read"},
}
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Module:
    """A parsed file."""

    def __init__(self, file: Path):
        text = file.read_text()
        self.lines = text.splitlines()
        self.tree = ast.parse(text)

    def comment(self, line: int) -> str:
        """Returns the `#:` comment above a line."""
        parts: list[str] = []
        while (above := self.lines[line - 2].strip()).startswith("#: "):
            parts.insert(0, above[3:])
            line -= 1
        return " ".join(parts)

    def public(self) -> Iterator[ast.stmt]:
        """Yields the definitions that are not private."""
        for node in self.tree.body:
            if isinstance(node, Definition) and not node.name.startswith("_"):
                yield node

    def find(self, name: str) -> ast.stmt:
        """Returns the definition of a name."""
        for node in reversed(self.tree.body):  # The last one of overloads has the text.
            if getattr(node, "name", None) == name or name in assigned(node):
                return node
        raise SystemExit(f"reference.py: {name} has no definition")

    def describe(self, node: ast.stmt) -> Iterator[str]:
        """Yields the section of a class, a function or an alias."""
        if isinstance(node, ast.ClassDef):
            yield from self.describe_class(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"### `{signature(node, node.name)}`\n\n{docstring(node)}"
        else:
            yield f"### `{ast.unparse(node)}`\n\n{self.comment(node.lineno)}"

    def describe_class(self, node: ast.ClassDef) -> Iterator[str]:
        """Yields a class with its attributes and methods."""
        methods = [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
        title = node.name
        for method in methods:
            if method.name == "__init__":
                title = signature(method, node.name)
        yield f"### `{title}`\n\n{docstring(node)}"
        rows = [f"| `{name}` | {text} |" for name, text in self.attributes(node, methods)]
        if rows:
            yield "\n".join(["| attribute | meaning |", "|---|---|", *rows])
        for method in methods:
            is_method = not {"property", "overload"} & set(decorators(method))
            if is_method and not method.name.startswith("_") and method.name not in INTERNAL.get(node.name, ()):
                yield f"#### `{signature(method, method.name)}`\n\n{docstring(method)}"

    def attributes(
        self, node: ast.ClassDef, methods: list[ast.FunctionDef | ast.AsyncFunctionDef]
    ) -> Iterator[tuple[str, str]]:
        """Yields the documented attributes and the properties of a class."""
        for part in [*node.body, *(part for method in methods if method.name == "__init__" for part in method.body)]:
            for name in assigned(part):
                if not name.startswith("_") and (text := self.comment(part.lineno)):
                    yield name, text.replace("|", "\\|")
        for method in methods:
            if "property" in decorators(method) and not method.name.startswith("_"):
                yield method.name, docstring(method).replace("\n\n", " ").replace("\n", " ")


def assigned(node: ast.stmt) -> list[str]:
    """Returns the names that a statement assigns, also as attributes of `self`."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    names = [target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "") for target in targets]
    return [name for name in names if name]


def docstring(node: Definition) -> str:
    """Returns the docstring."""
    return ast.get_docstring(node) or ""


def decorators(node: Definition) -> list[str]:
    """Returns the names of the decorators."""
    return [ast.unparse(decorator) for decorator in node.decorator_list]


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    """Returns a signature without `self`."""
    arguments = ast.unparse(node.args).removeprefix("self").removeprefix(", ").removeprefix("/, ")
    prefix = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    return f"{prefix}{name}({arguments}){returns}"


def main() -> None:
    """Prints the reference."""
    package = Module(SOURCE / "__init__.py")
    places = {
        alias.name: node.module
        for node in package.tree.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    modules = {name: Module(SOURCE / f"{name}.py") for name in set(places.values())}
    sections = ["## `windlass`"]
    for name, module in sorted(places.items(), key=lambda place: place[0].lower()):
        sections.extend(modules[module].describe(modules[module].find(name)))
    for title, file in OTHERS.items():
        module_ = Module(SOURCE / file)
        summary = (ast.get_docstring(module_.tree) or "").split("\n\n")[0]
        sections.append(f"## `{title}`\n\n{summary}")
        for node in module_.public():
            sections.extend(module_.describe(node))
    print("\n\n".join(sections))


if __name__ == "__main__":
    main()
