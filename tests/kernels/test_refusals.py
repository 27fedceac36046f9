"""What an op does not take beside what `test_agreement` tries of every op: sizes, dtypes and values.

The error names the argument, its shape or dtype, and those that are taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from compare import registry
from compare.model.op import Case, Implementation, UsageError, case
from loops import for_each, for_each_of_group
from on_device import argument_names, skip_unless_supported
from rows import labelled

pytestmark = pytest.mark.thorough

Change = Callable[[torch.Tensor], torch.Tensor]
Refusal = tuple[dict[str, Change], str]
"""Arguments that are changed, each key one or several of them, and what the error says that the op takes."""


def shaped(*sizes: int) -> Change:
    return lambda x: torch.zeros(sizes, dtype=x.dtype, device=x.device)


def to(dtype: torch.dtype) -> Change:
    return lambda x: (x.float() if x.itemsize == 1 else x).to(dtype)


CASES = {
    "attention": "B=1,Sq=3,Skv=3,Hq=4,Hk=2,D=64,causal=0,fp32",
    "attention_backward": "B=1,Sq=7,Skv=2,Hq=2,Hk=1,D=64,causal=1,fp16",
    "batched_matmul": "B=2,N=3,fp32",
    "decode_attention": "B=2,S=40,Hq=4,Hk=2,D=64,PAGE=16,fp16",
    "fp8_block_matmul": "M=2,N=130,K=256,fp8",
    "fp8_matmul": "M=2,N=5,K=64,fp8",
    "histogram": "N=5,SKEW=0,uint8",
    "int8_matmul": "M=2,N=5,K=64,int8",
    "topk": "M=2,N=5,K=3,fp16",
    "w4a16_matmul": "M=2,N=5,K=256,fp16",
}


def columns(x: torch.Tensor) -> torch.Tensor:
    return x[:, :-1]


def rows(x: torch.Tensor) -> torch.Tensor:
    return x[1:]


SCALED: list[Refusal] = [
    ({"b": columns}, "(any, 64) for b"),
    ({"scale_a": rows}, "(2,) for scale_a"),
    ({"scale_b": rows}, "(5,) for scale_b"),
    ({"scale_b": lambda x: x[:, None]}, "1"),
]
HEADS = "a number of heads of {} that divides {}"
LONG = {"a b": lambda x: x[:1, :1].expand(2, 1 << 17), "scale_b": lambda x: x[:2]}
SHAPES: dict[str, list[Refusal]] = {
    "attention": [
        ({"q k v": shaped(1, 3, 2, 32)}, "heads of length 64 or 128"),
        ({"k v": shaped(1, 3, 3, 64)}, HEADS.format("k", 4)),
        ({"k v": shaped(1, 3, 0, 64)}, HEADS.format("k", 4)),
        ({"q": shaped(2, 3, 2, 64)}, "(2, any, any, 64) for k"),
        ({"k v": shaped(1, 3, 2, 128)}, "(1, any, any, 64) for k"),
    ],
    "attention_backward": [
        ({"lse": lambda x: x.mT}, "(1, 2, 7) for lse"),
        ({"o": lambda x: x[:, :, :1]}, "equal shapes"),
        ({"do": rows}, "equal shapes"),
        ({"q": lambda x: x[:, :, :1].expand(-1, -1, 3, -1)}, ""),
        ({"v": columns}, "equal shapes"),
    ],
    "batched_matmul": [({"a b": shaped(2, 3, 4)}, "square matrices")],
    "decode_attention": [
        ({"q": shaped(2, 2, 4, 64)}, "(any, 1, any, 64 or 128)"),
        ({"q": shaped(2, 1, 4, 32)}, "(any, 1, any, 64 or 128)"),
        ({"k_pages v_pages": shaped(6, 8, 2, 64)}, "(any, 16 or 64, any, 64) for k_pages"),
        ({"q": shaped(2, 1, 5, 64)}, HEADS.format("k_pages", 5)),
    ],
    "fp8_block_matmul": [
        ({"b": columns}, "(any, 256) for b"),
        ({"scale_a": columns}, "(2, 2) for scale_a"),
        ({"scale_b": rows}, "(2, 2) for scale_b"),
    ],
    "fp8_matmul": SCALED,
    "int8_matmul": [*SCALED, (LONG, "at most 131071 columns")],
    "topk": [({"x": lambda x: x[:, :2]}, "0 to 2 for K")],
    "w4a16_matmul": [
        ({"packed": lambda x: x.repeat_interleave(8, dim=1)}, "(any, 32) for packed"),
        ({"scales": columns}, "(5, 2) for scales"),
        ({"zeros": lambda x: x.t()}, "(5, 2) for zeros"),
    ],
}
EIGHT_BITS = (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)
E4M3: list[Refusal] = [
    *(({"b": to(kind)}, "torch.float8_e4m3fn") for kind in EIGHT_BITS if kind is not torch.float8_e4m3fn),
    ({"scale_a": to(torch.float16)}, "torch.float32"),
]
DTYPES: dict[str, list[Refusal]] = {
    "attention_backward": [
        ({"lse": to(torch.float16)}, "torch.float32"),
        ({"q": to(torch.float32)}, "one dtype"),
    ],
    "fp8_block_matmul": E4M3,
    "fp8_matmul": E4M3,
    "histogram": [({"x": to(torch.int8)}, "torch.uint8")],
    "int8_matmul": [
        *(({"b": to(kind)}, "torch.int8") for kind in EIGHT_BITS if kind is not torch.int8),
        ({"scale_a": to(torch.float16)}, "torch.float32"),
    ],
    "w4a16_matmul": [
        ({"a": to(torch.float32)}, "torch.float16, torch.bfloat16"),
        ({"packed": to(torch.uint8)}, "torch.int32"),
        ({"scales": to(torch.bfloat16)}, "one dtype"),
        ({"zeros": to(torch.float16)}, "torch.uint8"),
    ],
}


def refusals(
    error: type[Exception], of: dict[str, list[Refusal]]
) -> dict[str, list[tuple[Implementation, type[Exception], dict[str, Change], str]]]:
    return {
        f"{op}-{error.__name__}": [
            (impl, error, *row) for impl in registry.implementations(op) for row in rows
        ]
        for op, rows in of.items()
    }


@for_each_of_group(
    "impl, error, changes, takes",
    refusals(ValueError, SHAPES) | refusals(TypeError, DTYPES),
    ids=lambda each: f"{each[0].label} takes {each[3]}",
)
def test_it_says_what_does_not_go_together(
    impl: Implementation, error: type[Exception], changes: dict[str, Change], takes: str, device: torch.device
) -> None:
    skip_unless_supported(impl, device)
    op = registry.get_op(impl.op)
    names, c = argument_names(op), Case.parse(CASES[op.name], op)
    tensors = op.make_inputs(c, torch.Generator(device).manual_seed(0), device)
    arguments = dict(zip(names, tensors, strict=True))
    for changed, change in changes.items():
        arguments |= {name: change(arguments[name]) for name in changed.split()}
    with pytest.raises(error) as refused:
        impl.run(*arguments.values(), **op.options(c))
    got = r"(\w+)(?: and \w+)? (?:has (?:\d dimensions, )?shape|have shape|is) (.+?)(?: and .+)?"
    said = re.match(rf"{op.name}: {got}; it takes {re.escape(takes)}", str(refused.value))
    assert said, str(refused.value)
    named = arguments[said[1]]
    assert said[2] == str(named.dtype if error is TypeError else tuple(named.shape))


@for_each(
    "op, words, says",
    [
        ("attention", "D=96", "D=96. Choose one of 64, 128"),
        ("attention", "Hk=3", "Hq=4 and Hk=3. Choose an Hq that is a multiple of Hk"),
        ("attention", "Hk=0", "Hq=4 and Hk=0"),
        ("attention", "causal=2", "causal=2. Choose 0 or 1"),
        ("compact", "N=5,K=6", "no K=6 can be kept"),
        ("histogram", "SKEW=101", "SKEW=101 of 100"),
        ("topk", "N=5,K=6", "no K=6 largest elements"),
    ],
)
def test_a_case_that_is_none_is_refused(op: str, words: str, says: str) -> None:
    described = registry.get_op(op)
    sizes = dict(described.cases.smoke[0].dims)
    sizes |= {"Hq": 4} if op == "attention" else {}
    sizes |= {name: int(size) for name, size in (word.split("=") for word in words.split(","))}
    with pytest.raises(UsageError, match=says):
        described.make_inputs(case(described.dtypes[0], **sizes), torch.Generator(), torch.device("cpu"))


OF_TILES = [
    (op, f"triton.{name}")
    for op, names in {
        "matmul": ("tiled", "grouped", "autotuned"),
        "linear_gelu": ("tensor_core",),
        "int8_matmul": ("tiled",),
        "fp8_block_matmul": ("tiled",),
    }.items()
    for name in names
]


def meta_inputs(op: str, **sizes: int) -> list[torch.Tensor]:
    described = registry.get_op(op)
    c = case(described.dtypes[-1], **sizes)
    return list(described.make_inputs(c, torch.Generator(), torch.device("meta")))


@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize(("op", "label"), OF_TILES)
def test_a_stride_whose_multiples_pass_32_bits_is_refused(op: str, label: str, operand: int) -> None:
    """Offsets within a tile, and from one tile to the next, are 32-bit products."""
    inputs = meta_inputs(op, M=16, N=128, K=256)
    along_k = 0 if operand == 1 and op in ("matmul", "linear_gelu") else 1
    strides = [1, 1]
    strides[along_k] = 1 << 24
    inputs[operand] = torch.empty_strided(
        inputs[operand].shape, strides, dtype=inputs[operand].dtype, device="meta"
    )
    with pytest.raises(NotImplementedError, match=r"=16777216: 128 such steps pass 2\^31 - 1, "):
        labelled(op, label).run(*inputs)


@pytest.mark.parametrize(("op", "label"), OF_TILES)
def test_a_size_that_loops_would_pass_in_32_bits_is_refused(op: str, label: str) -> None:
    inputs = meta_inputs(op, M=1, N=1, K=1)
    if op == "int8_matmul":  # no sum of so many terms is exact
        op, inputs = "fp8_matmul", meta_inputs("fp8_matmul", M=1, N=1, K=1)
    size = (1 << 31) - 128
    inputs[0] = inputs[0].expand(1, size)
    inputs[1] = inputs[1].expand((size, 1) if op in ("matmul", "linear_gelu") else (1, size))
    if op == "fp8_block_matmul":
        inputs[2:] = [scale.expand(1, size // 128) for scale in inputs[2:]]
    with pytest.raises(NotImplementedError, match="=2147483520: a loop's last step would pass"):
        labelled(op, label).run(*inputs)


def test_groups_that_programs_would_count_beyond_32_bits_are_refused() -> None:
    x = torch.empty((1 << 31) - 1, 1, dtype=torch.float16, device="meta")
    with pytest.raises(NotImplementedError, match="2147483647 groups: they are counted in 32 bits, at most"):
        labelled("quantize_fp8", "triton.pipelined").run(x, group=1)
