"""The labs' notebooks, ``labs/NN_name/lab.ipynb``: the hand-out and the starters as cells, by jupytext."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from compare.labs.lab import Lab, every
from compare.labs.work import ANSWERS, STARTED_FROM, form
from compare.registry import ROOT

try:
    import jupytext
except ImportError:  # a GPU machine may lack it, and makes no documents
    jupytext = None

_SETUP = f"""\
# On Colab: choose a T4 GPU (Runtime, Change runtime type) and upload handout.tar.gz first.
import os
import sys
from pathlib import Path

project = Path("gpu-three-ways").resolve()
if Path("handout.tar.gz").exists() and not project.exists():
    !tar xzf handout.tar.gz && {{sys.executable}} -m pip install -q -r {{project}}/requirements.txt
for folder in ({STARTED_FROM}, project, *project.parents):
    if (Path(folder) / "compare" / "__main__.py").exists():
        os.environ["PYTHONPATH"] = str(folder)
        sys.path.insert(0, str(folder))
        break"""
_RUN = "!{sys.executable} -m compare"


def every_notebook() -> dict[Path, Callable[[], str]]:
    """By file, relative to the project: what makes the notebook."""
    return {lab.path.parent.relative_to(ROOT) / "lab.ipynb": partial(notebook, lab) for lab in every()}


def notebook(lab: Lab) -> str:
    """The lab as one notebook.  Its cells write the files that ``lab check`` and ``grade`` read."""
    readme = re.sub(r"(?m)^<!-- .* -->\n", "", (lab.path.parent / "README.md").read_text())
    sections = re.split(r"(?m)^(?=## )", readme)
    cells = [
        sections[0],
        "Run the cells from top to bottom. A cell that begins with `%%writefile` writes a file: edit it, run "
        "it, then run the tests again.",
        _code(_SETUP),
    ]
    for section in sections[1:]:
        cells.append(section)
        title = section.partition("\n")[0]
        if ". Predict" in title:
            cells.append(_code(f"%%writefile {ANSWERS}\n{form(lab).rstrip()}"))
        elif ". Write" in title:
            for starter in lab.starters:
                cells.append(_code(f"%%writefile {starter.name}\n{starter.read_text().rstrip()}"))
            cells.append(_code(f"{_RUN} lab check ."))
        elif ". Measure" in title:
            cells.append(_code(f"{_RUN} lab report ."))
            cells.append(_code(f"from compare.notebook import run\n\nrun({lab.op!r})"))
    made = jupytext.reads("\n\n".join(cells), fmt="md")
    made.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "accelerator": "GPU",
    }
    for number, cell in enumerate(made.cells):
        cell["id"] = f"cell-{number:02}"
    text: str = jupytext.writes(made, fmt="ipynb")
    return text if text.endswith("\n") else text + "\n"


def _code(text: str) -> str:
    return f"```python\n{text}\n```"
