"""What a list says of every op, without importing one: kept under a hash of the sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from compare import registry
from compare.command_line import outputs
from compare.device import runs_on
from compare.model.op import Implementation, Op, way_of
from compare.records import result_cache
from compare.records.encoding import decode, encode

_KIND = "inventory"


@dataclass(frozen=True)
class Listed:
    """What a list says of an implementation, and what decides where it runs."""

    label: str
    level: str
    requires: str | None
    triton: str
    without_gpu: bool
    emulated: bool

    @property
    def route(self) -> str:
        return self.label.partition(".")[0]

    @property
    def way(self) -> str:
        return way_of(self.label)

    def refusal(self, here: str | None) -> str | None:
        """Why it does not run on this architecture (None: a CPU); None: it does."""
        return runs_on(self, here)


@dataclass(frozen=True)
class ListedOp:
    """What a list says of an op."""

    name: str
    signature: str
    summary: str
    dtypes: tuple[str, ...]
    implementations: tuple[Listed, ...]


def listed(impl: Implementation) -> Listed:
    return Listed(impl.label, impl.level, impl.requires, impl.triton, impl.without_gpu, impl.emulated)


def listed_op(op: Op) -> ListedOp:
    """Of an op with its implementations, which this imports."""
    impls = tuple(map(listed, registry.implementations(op.name)))
    return ListedOp(op.name, op.signature, op.summary, op.dtypes, impls)


def inventory() -> tuple[ListedOp, ...]:
    """Every op of the project.  After a change of its sources this imports all, with PyTorch and Triton,
    and says so on a terminal."""
    if (ops := kept()) is not None:
        return ops
    outputs.say_slow("op and source")
    ops = tuple(listed_op(registry.get_op(op)) for op in registry.op_names())
    result_cache.write(_KIND, _name(), encode(ops))
    return ops


def kept() -> tuple[ListedOp, ...] | None:
    """`inventory` if an earlier run has kept it, and no source has changed since; imports nothing heavy."""
    values = result_cache.read(_KIND, _name())
    return None if values is None else tuple(map(partial(decode, ListedOp), values))


def _name() -> str:
    return result_cache.of_sources("torch", "triton", "cupy-cuda13x", "cuda-bindings")
