"""What the project knows of Triton's tools and of its cache, with the Triton at hand.

`make test-triton` runs this file with an older and the newest Triton put before the environment's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compare import registry

SCRIPT = """
import base64, json, os, re, sys
from pathlib import Path
from compare import registry
from compare.aot import building, triton_tools
from compare.aot.plan import candidates, plan
from compare.caches.triton_cache import key_of
from compare.resources.worker import compile_triton

op = registry.get_op(sys.argv[1])
for arch in sys.argv[3:]:
    for impl in candidates(op, ["triton.*"]):
        said = {"label": impl.label, "arch": arch}
        try:
            planned = plan(op, impl, op.cases.smoke[0], arch)
            said["key"] = key_of(planned.launch, arch).name
            compiled, _ = compile_triton(planned.launch, arch)
            said["kept"] = base64.b32encode(bytes.fromhex(compiled.hash)).decode().rstrip("=")
            os.environ["TRITON_ALWAYS_COMPILE"] = "1"
            program = building.make(planned, Path(sys.argv[2], impl.label, arch))
            (source,) = program.folder.glob(f"{program.kernel.name}.*.c")
            numbers = re.search(r"CUBIN_NAME\\[\\d+\\] = \\{(.*?)\\}", source.read_text(), re.DOTALL)[1]
            carried = bytes(int(number, 16) for number in numbers.split(","))
            said |= {"same": carried == compiled.asm["cubin"], "program_bytes": program.program_bytes}
        except NotImplementedError as error:
            said["cannot"] = str(error)
        print(json.dumps(said))
"""


@pytest.mark.parametrize("op", registry.op_names())
def test_programs_carry_what_would_be_compiled_at_run_time(op: str, tmp_path: Path) -> None:
    """Of every kernel: the tools' cubin is the compiler's, bit for bit, and its key is worked out right."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, op, str(tmp_path), "sm_90"],
        capture_output=True,
        text=True,
        cwd=registry.ROOT,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert any("same" in row for row in rows)
    for row in rows:
        assert row.get("same", True), row
        assert "program_bytes" in row or row["cannot"], row
        if "kept" in row:
            assert row["key"] == row["kept"]
            assert (tmp_path / "cache" / row["key"]).is_dir()
