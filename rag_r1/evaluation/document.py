"""A report as blocks that render to Markdown and to self-contained HTML: the same words and numbers in both.

All text is data: it is escaped, so what a model wrote cannot break the page or run in it.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import rich.box
import rich.console
import rich.markup
import rich.table

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 78rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-size: .9em; margin: 1rem 0; display: block; overflow-x: auto; }
td { font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
tr.total { font-weight: 600; }
.words td, .words th, td.wide { text-align: left; }
td.wide { white-space: normal; min-width: 16rem; overflow-wrap: anywhere; }
figure { margin: 1.5rem 0; }
img { max-width: min(100%, 60rem); background: #fff; border-radius: 4px; }
figcaption, .warning { font-size: .9em; }
.warning { border-left: 4px solid #d97706; padding: .2rem .8rem; background: var(--soft); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--soft); padding: .8rem; border-radius: 4px; }
details { margin: .6rem 0; }
summary { cursor: pointer; }
"""


class Block(Protocol):
    def markdown(self) -> str: ...

    def html(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Heading:
    text: str
    level: int = 2

    def markdown(self) -> str:
        return f"{'#' * self.level} {_inline(self.text)}"

    def html(self) -> str:
        return f"<h{self.level}>{html.escape(self.text)}</h{self.level}>"


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    warning: bool = False

    def markdown(self) -> str:
        return f"> **Warning:** {_inline(self.text)}" if self.warning else _inline(self.text)

    def html(self) -> str:
        return (
            f'<p class="warning">{html.escape(self.text)}</p>' if self.warning else f"<p>{html.escape(self.text)}</p>"
        )


@dataclass(frozen=True, slots=True)
class Table:
    """First column to the left, the others to the right, unless they are not `numbers`."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: bool = True
    total: bool = False
    """The last row sums up the others."""

    def markdown(self) -> str:
        rule = ["---"] + ["--:" if self.numbers else "---"] * (len(self.header) - 1)
        lines = [[_inline(c) for c in self.header], rule, *([_inline(c) for c in row] for row in self.rows)]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def html(self) -> str:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.header)
        lines = [f"<tr>{''.join(map(_td, row))}</tr>" for row in self.rows]
        if self.total:
            lines[-1] = lines[-1].replace("<tr>", '<tr class="total">', 1)
        kind = "" if self.numbers else ' class="words"'
        return f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"

    def show(self, title: str = "") -> None:
        """Print to the terminal, the total below a line. A narrow terminal wraps lines, nothing is cut off."""
        table = rich.table.Table(title=title or None, title_justify="left", box=rich.box.SIMPLE_HEAD, padding=(0, 1))
        for i, name in enumerate(self.header):
            side: Literal["left", "right"] = "right" if i and self.numbers else "left"
            table.add_column(name.replace(" before", "\nbefore"), justify=side, no_wrap=True)
        for i, row in enumerate(self.rows):
            if self.total and i and i == len(self.rows) - 1:
                table.add_section()
            table.add_row(*map(rich.markup.escape, row))
        console = rich.console.Console()
        console.width = max(console.width, console.measure(table, options=console.options.update(width=10_000)).maximum)
        console.print(table)


@dataclass(frozen=True, slots=True)
class Figure:
    """`png` is embedded in HTML; Markdown links to `path`, relative to the report."""

    png: bytes
    path: str
    caption: str

    def markdown(self) -> str:
        return f"![{_inline(self.caption)}]({self.path})"

    def html(self) -> str:
        data = base64.b64encode(self.png).decode()
        caption = html.escape(self.caption)
        image = f'<img alt="{caption}" src="data:image/png;base64,{data}">'
        return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


@dataclass(frozen=True, slots=True)
class Example:
    """A title, and text shown as it is; folded in HTML."""

    title: str
    text: str

    def markdown(self) -> str:
        longest = max((len(run) for run in re.findall("`+", self.text)), default=0)
        fence = "`" * max(3, longest + 1)
        return f"**{_inline(self.title)}**\n\n{fence}text\n{self.text}\n{fence}"

    def html(self) -> str:
        title, text = html.escape(self.title), html.escape(self.text)
        return f"<details><summary>{title}</summary><pre>{text}</pre></details>"


def to_markdown(blocks: Sequence[Block]) -> str:
    return "\n\n".join(block.markdown() for block in blocks) + "\n"


def to_html(title: str, blocks: Sequence[Block]) -> str:
    """One page that needs no other file and no network."""
    body = "\n".join(block.html() for block in blocks)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n'
        f"<body>\n{body}\n</body></html>\n"
    )


def _td(cell: str) -> str:
    wide = ' class="wide"' if len(cell) > 30 else ""
    return f"<td{wide}>{html.escape(cell)}</td>"


def _inline(text: str) -> str:
    """Plain text as Markdown: one line, nothing in it is markup."""
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", " ".join(text.split()))
