"""Autotuning searches, recorded in the worker process that makes them.

``triton.autotune`` searches at the first call of a class of shapes; its own disk cache does not name the GPU.
Here it gets the configurations of earlier runs, and new ones are recorded.  torch.compile's max-autotune has
its own cache: its log is recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from triton.runtime.autotuner import Autotuner

from compare.spec import Tuning


@contextmanager
def watched(known: Sequence[Tuning]) -> Iterator[list[Tuning]]:
    """Record the searches of this process.

    Args:
        known: configurations that need no new search.

    Yields:
        A list that gets each configuration, found or taken from ``known``.
    """
    found: list[Tuning] = []
    with ExitStack() as stack:
        stack.enter_context(_of_triton(known, found.append))
        # Not imported here: that takes seconds, and code that uses Inductor has imported it.
        if inductor := sys.modules.get("torch._inductor.select_algorithm"):
            stack.enter_context(_of_inductor(inductor, found.append))
        yield found


# --------------------------------------------------------------------------- triton.autotune


class _Found(dict[Any, Any]):
    """An autotuner's cache with the configurations of earlier runs; records the keys looked up."""

    def __init__(self, cache: dict[Any, Any], configs: Sequence[Any], known: Sequence[Tuning]) -> None:
        super().__init__(cache)
        self._configs = {described(config): config for config in configs}
        self._known = {tuning.key: tuning for tuning in known}
        self.told: dict[Any, Tuning] = {}
        self.asked: Any = None

    def __contains__(self, key: object) -> bool:
        tuning = self._known.get(str(key))
        if not super().__contains__(key) and tuning is not None and tuning.found in self._configs:
            self[key] = self._configs[tuning.found]
            self.told[key] = replace(tuning, kept=True)
        return super().__contains__(key)

    def __getitem__(self, key: object) -> Any:
        self.asked = key
        return super().__getitem__(key)


def described(config: Any) -> str:
    """A ``triton.Config`` as text: ``BLOCK_M=128 BLOCK_N=256 num_warps=8 num_stages=3``."""
    values = {**config.kwargs, **config.all_kwargs()}
    return " ".join(f"{name}={value}" for name, value in values.items() if (name, value) != ("num_ctas", 1))


@contextmanager
def _of_triton(known: Sequence[Tuning], tell: Callable[[Tuning], None]) -> Iterator[None]:
    run = Autotuner.run

    def watching(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(self.configs) < 2:
            return run(self, *args, **kwargs)
        kernel = self.base_fn.__name__
        if not isinstance(self.cache, _Found):
            self.cache = _Found(self.cache, self.configs, [t for t in known if t.kernel == kernel])
        result = run(self, *args, **kwargs)
        cache = self.cache
        if cache.asked not in cache.told:
            cache.told[cache.asked] = Tuning(
                kernel,
                str(cache.asked),
                described(self.best_config),
                tuple(map(described, self.configs)),
                len(self.configs_timings),
                getattr(self, "bench_time", 0.0),  # absent with Triton's own cache
            )
        tell(cache.told[cache.asked])
        return result

    with mock.patch.object(Autotuner, "run", watching):
        yield


# --------------------------------------------------------------------------- torch.compile's max-autotune


@contextmanager
def _of_inductor(module: Any, tell: Callable[[Tuning], None]) -> Iterator[None]:
    cache = module.AlgorithmSelectorCache
    log_results = cache.log_results

    def watching(
        name: str,
        input_nodes: Any,
        timings: dict[Any, float],
        elapse: float,
        precompile_elapse: float,
        *more: Any,
        **named: Any,
    ) -> None:
        if timings:
            space = tuple(map(_choice, timings))
            found = _choice(min(timings, key=timings.__getitem__))
            tell(Tuning(name, "", found, space, len(space), elapse + precompile_elapse))
        log_results(name, input_nodes, timings, elapse, precompile_elapse, *more, **named)

    with mock.patch.object(cache, "log_results", staticmethod(watching)):
        yield


def _choice(choice: Any) -> str:
    """A choice of Inductor as text: the kernel's name, and the constants of a generated one."""
    text = getattr(choice, "description", "") or ""
    return f"{choice.name}: {text}" if text else str(choice.name)
