#!/usr/bin/env python3
"""Prints the lines of code of the Python files below a folder, without blank lines, comments and docstrings.

    python_code_lines.py FOLDER [NAME]…

NAME is a folder that is left out.
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)

for file in sorted(Path(sys.argv[1]).rglob("*.py")):
    if set(file.parts) & set(sys.argv[2:]):
        continue
    text = file.read_text()
    docstrings = set()
    for node in ast.walk(ast.parse(text)):
        # A string that stands alone documents what precedes or contains it.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, node.end_lineno + 1))
    code = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    lines = text.splitlines()
    for number in sorted(code - docstrings):
        print(lines[number - 1])
