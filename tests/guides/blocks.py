"""The commands that the documentation shows, and what stands in for the reader's script and runs."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<why>[^>]+) -->\n)?^```(?P<language>\w+)(?P<title>[^\n]*)\n(?P<text>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
SEPARATORS = {"&&", "||", "|", ";", "&", ">", ">>", "(", ")", "<"}
STAND_IN = """\
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        time.sleep(0.003)
        return torch.randn(8, 16), torch.randn(8, 1)


torch.set_num_threads(1)
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in DataLoader(Slow(), batch_size=None):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
"""Takes any arguments, as the reader's train.py does; the dataset is slow."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. `why` is the reason for not running it, if the page gives one."""

    page: str
    language: str
    title: str
    text: str
    why: str | None


def blocks() -> list[Block]:
    """Every block with a language."""
    found = []
    for path in PAGES:
        for block in BLOCK.finditer(path.read_text()):
            page = path.relative_to(ROOT).as_posix()
            found.append(Block(page, block["language"], block["title"], block["text"], block["why"]))
    return found


def commands(text: str) -> Iterator[list[str]]:
    """The words of each `traceml ...` in shell lines, without comments, redirections and what they feed."""
    for line in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"\$\{?\w+\}?", "1", line)  # a loop's variable, or the number of a pod
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if "traceml run" in word:  # bash -c '...'
                yield from commands(word)
            if word not in SEPARATORS:
                words.append(word)
                continue
            if "traceml" in words:
                yield words[words.index("traceml") :]
            words = []


def commands_in_yaml(text: str) -> Iterator[list[str]]:
    """The same in the values of YAML: a command line, or a list of its words."""

    def walk(value: Any) -> Iterator[list[str]]:
        if isinstance(value, list) and value[:1] == ["traceml"]:
            yield [str(word) for word in value]
        elif isinstance(value, (list, dict)):
            for part in value.values() if isinstance(value, dict) else value:
                yield from walk(part)
        elif isinstance(value, str) and "traceml " in value:
            yield from commands(value)

    yield from walk(yaml.safe_load(text))


def prepare(folder: Path, words: list[str], template: Path) -> None:
    """Put what the command needs into the folder: scripts, and runs (copies of a real one) that it names."""
    if not (folder / "logs").exists():
        shutil.copytree(template, folder / "logs" / template.name)
    for word in words[2:]:
        path = folder / word
        if word.endswith(".py"):
            assert word.startswith("train") or (ROOT / word).is_file(), f"{word} does not exist"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(STAND_IN)
        elif word == "pkg.train":
            (folder / "pkg").mkdir(exist_ok=True)
            (folder / "pkg" / "train.py").write_text(STAND_IN)
        elif words[1] == "run" or word.startswith("-") or path.exists():
            continue
        elif word.endswith(".json"):
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(template / "final_summary.json", path)
        elif re.fullmatch(r"[\w.-]+", word) and not (folder / "logs" / word).exists():
            shutil.copytree(template, folder / "logs" / word)
        elif re.fullmatch(r"[\w.-]+/[\w.-]+", word):
            shutil.copytree(template, path)
