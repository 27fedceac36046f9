"""Installs the project.  ``pip install .`` compiles nothing: a pybind11 module is built at its first use.

``python setup.py build_ext --inplace`` builds them all ahead of time, and so does ``pip install
--no-build-isolation .`` where CUDA_ARCHS is set.  It names the architectures; unset: ``75;80;86;89;90a``.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent))  # an isolated build does not see the project


DATA = ("docs/", "examples/", "labs/", "results/", "constraints.txt", "requirements")
"""What the commands read beside the packages: an installed copy has it in `compare/data`."""


class BuildPackages(build_py):
    """The packages and `DATA`: of both, the files that MANIFEST.in names."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # the checkout is read
            return
        shutil.rmtree(Path(self.build_lib, "compare", "data"), ignore_errors=True)  # of an older build
        for file in self.get_finalized_command("egg_info").filelist.files:
            if file.startswith(DATA):
                target = Path(self.build_lib, "compare", "data", file)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)


class BuildModules(build_ext):
    """Every op's pybind11 module through nvcc, side by side, by way of `cuda_impl.build`."""

    def run(self) -> None:
        archs = chosen_archs()
        try:
            from cuda_impl import build
        except ImportError as error:
            sys.exit(
                f"setup.py: {error.name} is missing: pip install -r requirements.txt, then "
                "pip install --no-build-isolation ."
            )
        here = self.inplace or self.editable_mode
        folder = build.PREBUILT if here else Path(self.build_lib, "cuda_impl", "pybind", build.PREBUILT.name)
        try:
            build.nvcc()
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                for module in pool.map(lambda op: build.prebuild(op, archs, folder), ops()):
                    print(f"built {module}")
        except build.BuildError as error:
            sys.exit(f"setup.py: {error}")

    def get_outputs(self) -> list[str]:
        return []

    def get_source_files(self) -> list[str]:
        return []


def chosen_archs() -> tuple[str, ...]:
    """``75;90a`` as ``("sm_75", "sm_90a")``; none unless modules are to be built."""
    text = os.environ.get("CUDA_ARCHS", "75;80;86;89;90a" if "build_ext" in sys.argv else "")
    archs = tuple(word.strip().removeprefix("sm_") for word in text.split(";") if word.strip())
    for arch in archs:
        if not re.fullmatch(r"\d{2,3}[af]?", arch):
            sys.exit(f"setup.py: CUDA_ARCHS={text!r}: {arch!r} is no architecture; write 75;80;90a")
    return tuple(f"sm_{arch}" for arch in archs)


def ops() -> list[str]:
    """Those with launch tables, and ``floor``, the empty kernel."""
    described = {path.stem for path in Path("ops").glob("[!_]*.py")}
    return ["floor", *sorted(described & {path.stem for path in Path("cuda_impl", "launches").glob("*.py")})]


setup(
    cmdclass={"build_ext": BuildModules, "build_py": BuildPackages},
    # setuptools runs build_ext only for a project that has an extension, and names its wheel by the machine.
    ext_modules=[Extension("cuda_impl.pybind.prebuilt", sources=[])] if chosen_archs() else [],
)
