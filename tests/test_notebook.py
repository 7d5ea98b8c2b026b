"""The notebook: valid, self-contained, and running top to bottom wherever it is opened."""

from __future__ import annotations

import json
import subprocess
import sys

import pyarrow as pa
import pytest

from conftest import FIXTURES, pack
from recipes.run.notebook import render

pytestmark = pytest.mark.slow

TEMPLATE = """\"\"\"A template.\"\"\"

# %% [markdown]
# # Title
# Text.

# %%
DATA = {}

# %%
print(DATA["t"])
"""


def test_cells_come_from_the_template(tmp_path):
    path = tmp_path / "notebook.py"
    path.write_text(TEMPLATE)
    notebook = json.loads(render(path, {"t": pa.table({"a": [1]})}, ""))
    assert [cell["cell_type"] for cell in notebook["cells"]] == ["markdown", "code", "code"]
    assert notebook["cells"][0]["source"] == "# Title\nText."
    assert notebook["cells"][2]["source"] == 'print(DATA["t"])'


def test_hostile_names_stay_data(tmp_path):
    path = tmp_path / "notebook.py"
    path.write_text(TEMPLATE)
    names = ['"""\nimport os', "'); DROP", "\\", "</script>", "# %%", "\u2028", "a\0b"]
    notebook = json.loads(render(path, {"t": pa.table({"a": names})}, ""))
    assert len(notebook["cells"]) == 3
    scope: dict = {}
    exec(notebook["cells"][1]["source"], scope)
    import io

    import pandas as pd

    read = pd.read_csv(io.StringIO(scope["DATA"]["t"]), keep_default_na=False)
    assert read["a"].tolist()[:6] == names[:6]


@pytest.fixture(scope="module")
def notebook(tmp_path_factory, nsys):
    """The notebook of a run over both decode captures and a report without work."""
    folder = tmp_path_factory.mktemp("run") / "out"
    done = pack("run", "llm_kernel_families", "--input", FIXTURES / "decode_eager.nsys-rep",
                FIXTURES / "decode_graph.nsys-rep", "--output", folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "llm_kernel_families.ipynb"


def test_notebook_runs_top_to_bottom_in_another_folder(notebook, tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    loaded = nbformat.read(notebook, as_version=4)
    nbformat.validate(loaded)
    nbclient.NotebookClient(loaded, resources={"metadata": {"path": str(tmp_path)}}, timeout=120).execute()
    figures = [out for cell in loaded.cells for out in cell.get("outputs", [])
               if "application/vnd.plotly.v1+json" in out.get("data", {})]  # fmt: skip
    assert len(figures) == 5
    assert not list(tmp_path.iterdir())


DECODE = [FIXTURES / f"{capture}.nsys-rep" for capture in ("decode_eager", "decode_graph")]
RANKS = [FIXTURES / "2023.4.4" / f"tp_eager_rank{rank}.nsys-rep" for rank in (0, 1)]


# For llm_decode_floor no roofline, since no model is given; for llm_nccl_sum no message sizes, which 2023.4.4 does not
# export.
@pytest.mark.parametrize(
    ("name", "reports", "figures"),
    [
        ("llm_kernel_families", DECODE, 5),
        ("llm_decode_floor", DECODE, 3),
        ("llm_idle_gaps", DECODE, 5),
        ("llm_nccl_sum", RANKS, 4),
        ("llm_nccl_sum", DECODE, 0),
    ],
)
def test_notebook_needs_pandas_and_plotly_only(name, reports, figures, nsys, tmp_path):
    """As plain Python, with everything else that is installed made unimportable."""
    made = pack("run", name, "--input", *reports, "--output", tmp_path / "out")
    assert made.returncode == 0, made.stderr
    cells = json.loads((tmp_path / "out" / f"{name}.ipynb").read_text())["cells"]
    code = "\n".join(cell["source"] for cell in cells if cell["cell_type"] == "code")
    guard = (
        "import sys\n"
        "class Guard:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in {'pyarrow', 'recipes', 'jinja2', 'matplotlib', 'scipy'}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Guard())\n"
        "import plotly.graph_objects as _go\n"
        "_go.Figure.show = lambda self, *a, **k: print('figure', len(self.data))\n"
    )
    script = tmp_path / "notebook_as_script.py"
    script.write_text(guard + code)
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("figure ") == figures
