"""The instruction mix: machine code grouped by what it does to the machine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from compare.resources.sass.disassembly import Instruction

_MEMORY = {
    "LDG": "global loads",
    "LDGSTS": "global loads",
    "STG": "global stores",
    "LDS": "shared loads",
    "LDSM": "shared loads",
    "STS": "shared stores",
    "STSM": "shared stores",
    "STAS": "shared stores",
    "LDL": "local loads",
    "STL": "local stores",
    "LD": "generic loads",
    "ST": "generic stores",
}
"""Loads and stores that are counted by width.  LDGSTS is cp.async; local memory holds spills."""

_TMA = (
    ("global loads", r"UTMALDG|UBLKCP\.S"),  # UBLKCP names its destination first: shared from global
    ("global stores", r"UTMASTG|UBLKCP\.G"),
)
"""The Tensor Memory Accelerator moves a tile or a bulk of bytes; their size is not in the instruction."""

_MOVE = re.compile(r"\bHFMA2\S* \w+, -RZ\S*, RZ\S*, ")
"""0 * 0 + constant: how ptxas writes a constant to a register on the fp16 pipe."""

_GROUPS = (
    ("async copies", r"UTMA\w+|UBLK\w+|LDGDEPBAR|DEPBAR|ARRIVES"),
    ("atomics", r"ATOM[GS]?|RED|REDG|REDAS"),
    ("matrix", r"\w*GMMA|WARPGROUP|UTC\w*MMA|[BDHIOQ]MMA"),
    ("fp32", r"F(FMA|ADD|MUL|MNMX|SEL|SET|CHK|SWZADD)[0-9]*"),
    ("fp16", r"H(FMA|ADD|MUL|MNMX|SET)2\w*|HADD2"),
    ("fp64", r"D(FMA|ADD|MUL|SETP|MNMX)"),
    ("MUFU", r"MUFU"),
    ("barriers", r"BAR|B2R|R2B|SYNCS|MEMBAR|FENCE|ERRBAR|CCTL|WARPSYNC|NANOSLEEP|UCGABAR_\w+|ACQBULK|ELECT"),
    ("warp", r"SHFL|VOTE|VOTEU|MATCH|REDUX|CREDUX"),
    ("branches", r"BRA|BRX|JMP|JMX|EXIT|CALL|RET|BSSY|BSYNC|BREAK|KILL|BPT|BMOV|YIELD|UBRA|PREEXIT"),
    ("conversions", r"F2F\w*|F2I\w*|I2F\w*|I2I\w*|F2IP|I2FP|I2IP|FRND"),
    ("constants", r"U?LDC\w*"),
    ("padding", r"NOP"),
)

ORDER = list(dict.fromkeys((*_MEMORY.values(), *dict(_GROUPS), "integer, moves")))


def mix(found: Iterable[Instruction]) -> dict[str, Counter[str]]:
    """Instructions by group, and within it by kind: of memory the width, else the instruction's name.

    >>> from compare.resources.sass.disassembly import instructions
    >>> mix(instructions("/*0000*/ LDG.E.128 R12, [R2] ;"))
    {'global loads': Counter({'128 bits': 1})}
    """
    groups: dict[str, Counter[str]] = {}
    for instruction in found:
        group, kind = classified(instruction)
        groups.setdefault(group, Counter())[kind] += 1
    return {group: groups[group] for group in ORDER if group in groups}


_AS_ONE = ("integer, moves", "branches", "padding")
"""Groups that are shown as one."""


def kinds(found: Iterable[Instruction]) -> dict[str, int]:
    """The mix in one level, in its order: ``global loads, 128 bits``.

    >>> from compare.resources.sass.disassembly import instructions
    >>> kinds(instructions("/*0000*/ LDG.E.128 R12, [R2] ;\\n/*0010*/ MOV R1, R2 ;\\n/*0020*/ NOP;"))
    {'global loads, 128 bits': 1, 'padding': 1, 'integer, moves': 1}
    """
    listed: dict[str, int] = {}
    for group, counts in mix(found).items():
        shown = {group: counts.total()} if group in _AS_ONE else counts
        listed |= {group if kind == group else f"{group}, {kind}": n for kind, n in shown.items()}
    return listed


def in_order(names: Iterable[str]) -> list[str]:
    """Names of `kinds`, each once, group by group."""

    def place(name: str) -> int:
        return next(i for i, group in enumerate(ORDER) if name == group or name.startswith(f"{group}, "))

    return sorted(dict.fromkeys(names), key=place)


def classified(instruction: Instruction) -> tuple[str, str]:
    """An instruction's group, and its kind there.

    >>> from compare.resources.sass.disassembly import instructions
    >>> code = "/*0000*/ LDG.E.U16 R0, [R2] ;\\n/*0010*/ UTMALDG.2D [UR8], [UR4] ;\\n"
    >>> code += "/*0020*/ HMMA.16816.F32 R0, R4, R8, R0 ;\\n/*0030*/ HFMA2.MMA R3, -RZ, RZ, 0, 0 ;"
    >>> for one in instructions(code):
    ...     print(*classified(one), sep=", ")
    global loads, 16 bits
    global loads, TMA
    matrix, HMMA.16816
    integer, moves, HFMA2
    """
    opcode = instruction.opcode
    name, _, modifiers = opcode.partition(".")
    for group, pattern in _TMA:
        if re.match(pattern, opcode):
            return group, "TMA"
    if name in _MEMORY:
        if name.endswith("SM"):
            return _MEMORY[name], "matrices"
        return _MEMORY[name], f"{width_bits(opcode)} bits{' by LDGSTS' if name == 'LDGSTS' else ''}"
    if not _MOVE.search(instruction.text):
        for group, pattern in _GROUPS:
            if re.fullmatch(pattern, name):
                if group == "matrix":
                    return group, ".".join(opcode.split(".")[:2])
                return group, modifiers if name == "MUFU" else name
    return "integer, moves", name


_MULTIPLY = (
    r"\w*GMMA|UTC\w*MMA",  # by a warpgroup or more, from shared memory
    r"[BDHIOQ]MMA",  # by a warp
    r"IDP",  # four products of 8-bit numbers
    r"D(FMA|MUL)",
    r"F(FMA|MUL)2?",
    r"H(FMA|MUL)2",
)


def multiplications(found: Iterable[Instruction]) -> Counter[str]:
    """What a kernel multiplies with: the fastest kind of instruction that it has, by name and shape.

    A kernel with tensor cores has FFMA and FMUL beside them, and not the other way round.

    >>> from compare.resources.sass.disassembly import instructions
    >>> code = "/*0000*/ FMUL R0, R1, R2 ;\\n/*0010*/ HMMA.16816.F32.BF16 R0, R4, R8, R0 ;"
    >>> multiplications(instructions(code))
    Counter({'HMMA.16816': 1})
    """
    opcodes = [one.opcode for one in found if not _MOVE.search(one.text)]
    for pattern in _MULTIPLY:
        fit = [opcode for opcode in opcodes if re.fullmatch(pattern, opcode.partition(".")[0])]
        if fit:
            parts = 2 if "MMA" in fit[0].partition(".")[0] or fit[0].startswith("IDP") else 1
            return Counter(".".join(opcode.split(".")[:parts]) for opcode in fit)
    return Counter()


def load_bits(found: Iterable[Instruction]) -> int | None:
    """The widest load from global memory, in bits per thread; None without loads other than TMA's.

    >>> from compare.resources.sass.disassembly import instructions
    >>> load_bits(instructions("/*0000*/ LDG.E R0, [R2] ;\\n/*0010*/ LDG.E.128 R4, [R8] ;"))
    128
    """
    loads = (one.opcode for one in found if one.opcode.partition(".")[0] in ("LDG", "LDGSTS"))
    return max(map(width_bits, loads), default=None)


def width_bits(opcode: str) -> int:
    """How much of memory a thread's load or store moves.

    >>> width_bits("LDG.E.128"), width_bits("STG.E"), width_bits("LDG.E.U8"), width_bits("LDG.E.ENL2.256")
    (128, 32, 8, 256)
    """
    for modifier in reversed(opcode.split(".")):
        if match := re.fullmatch(r"[US]?(8|16|32|64|128|256)", modifier):
            return int(match[1])
    return 32
