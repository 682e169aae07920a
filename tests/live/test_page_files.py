"""The page as a file: who writes it, what is in it, and what happens where it was not built."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live import pages
from tests.running import scripts
from tests.running.processes import environment, traced
from traceml.errors import CommandError
from traceml.monitor.result import encode
from traceml.present import page
from traceml.schema.catalog import GUIDE_LABELS, PHASE_COLOURS, USER_COLOURS
from traceml.schema.live import STATES

EVIL = '</script><!-- "\u2028\u2029 \\ é'


def data_in(content: bytes) -> bytes:
    """The JSON in a page, as it is there."""
    return content.partition(page.HEAD)[2].partition(b"</script>")[0]


def unescaped(data: bytes) -> bytes:
    for character, escape in page.ESCAPES.items():
        data = data.replace(escape, character)
    return data


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that needs no build."""
    path = tmp_path / "page.html"
    path.write_bytes(b"<html>" + page.HEAD + b"</script></html>")
    monkeypatch.setattr(page, "PAGE", path)


@pytest.mark.usefixtures("template")
def test_data_cannot_end_its_element() -> None:
    """Whatever a text holds, the element ends where the page ends it, and the JSON means the same."""
    given = json.dumps({"text": EVIL}, ensure_ascii=False).encode()
    data = data_in(page.page(given))
    assert b"<" not in data
    assert "\u2028".encode() not in data
    assert json.loads(data) == {"text": EVIL}
    assert unescaped(data) == given


@pytest.mark.usefixtures("template")
def test_page_holds_the_summary_byte_for_byte() -> None:
    """The report is made from final_summary.json and nothing else."""
    summary = pages.one_rank(pages.facts(EVIL))
    data = data_in(page.of_summary(encode(summary)))
    assert unescaped(data) == b'{"kind":"summary","summary":' + encode(summary) + b"}"


def test_missing_page_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without the page says what is missing and what to do."""
    monkeypatch.setattr(page, "PAGE", tmp_path / "none.html")
    with pytest.raises(CommandError, match=r"has no page\.html; install Node\.js"):
        page.page(b"{}")


def test_phases_have_the_same_colours_and_names_everywhere() -> None:
    """The page's palette, and its words for phases and states, are those of the terminal."""
    found = json.loads((pages.ROOT / "web" / "src" / "shared.json").read_text())
    colours = {"phases": PHASE_COLOURS, "user": list(USER_COLOURS)}
    assert found == {**colours, "labels": GUIDE_LABELS, "states": STATES}


def test_build_is_pinned_and_names_no_registry() -> None:
    """Every version is exact, and packages come from whatever registry the machine uses."""
    wanted = json.loads((pages.ROOT / "web" / "package.json").read_text())["devDependencies"]
    lock = json.loads((pages.ROOT / "web" / "package-lock.json").read_text())["packages"]
    assert all(version[0].isdigit() for version in wanted.values())
    assert {name: lock[f"node_modules/{name}"]["version"] for name in wanted} == wanted
    assert [name for name, entry in lock.items() if "resolved" in entry] == []


def test_types_of_the_page_hold() -> None:
    """The TypeScript sources pass the strict check, with types that are made from the Python schema."""
    pages.build()
    subprocess.run([sys.executable, str(pages.ROOT / "web" / "schema_types.py")], check=True)
    compiler = pages.ROOT / "web" / "node_modules" / "typescript" / "bin" / "tsc"
    node = shutil.which("node")
    if node is None or not compiler.exists():
        pytest.skip("needs Node.js, and web/node_modules from `python web/build.py`")
    done = subprocess.run(
        [node, str(compiler), "--noEmit"], cwd=pages.ROOT / "web", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "traceml", *words]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)


def test_a_run_leaves_its_report_when_asked(tmp_path: Path) -> None:
    """`--html-report` writes the page beside the summary, with the same JSON; so does `view --html`."""
    pages.build()
    scripts.write(tmp_path, "train(30)\n")
    words = ("--run-name", "one", "--html-report", "train.py")
    done = subprocess.run(
        traced(*words), cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert "\nReport: logs/one/final_summary.html\n" in done.stderr
    folder = tmp_path / "logs" / "one"
    summary = (folder / "final_summary.json").read_bytes()
    report = (folder / "final_summary.html").read_bytes()
    assert unescaped(data_in(report)) == b'{"kind":"summary","summary":' + summary + b"}"
    viewed = run(tmp_path, "view", "one", "--html", "again.html")
    assert (viewed.returncode, viewed.stdout, viewed.stderr) == (0, "", "traceml: wrote again.html\n")
    again = (tmp_path / "again.html").read_bytes()
    assert json.loads(data_in(again))["summary"] == json.loads(summary)
    (folder / "final_summary.html").unlink()
    assert run(tmp_path, "view", "one", "--html").stderr == "traceml: wrote logs/one/final_summary.html\n"
    assert (folder / "final_summary.html").read_bytes() == again


def test_report_that_cannot_be_written_harms_nothing(tmp_path: Path) -> None:
    """The summary files and the exit code of the run are there even if the page is not."""
    pages.build()
    script = scripts.write(tmp_path, "import os\ntrain(30)\nos.mkdir('logs/one/final_summary.html')\n")
    done = subprocess.run(
        traced("--run-name", "one", "--html-report", script.name),
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "writing final_summary.html failed" in done.stderr
    assert "Report:" not in done.stderr
    assert (tmp_path / "logs" / "one" / "final_summary.json").exists()
    assert (tmp_path / "logs" / "one" / "final_summary.txt").exists()


def test_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """A wrong OUT ends with exit code 2 and the reason."""
    pages.build()
    (tmp_path / "final_summary.json").write_bytes(encode(pages.one_rank()))
    done = run(tmp_path, "view", "final_summary.json", "--html", "no/such/folder/x.html")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("traceml: no/such/folder/x.html: cannot be written (")
