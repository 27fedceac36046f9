// The text that all wgmma share. PTX names each register of d, and neither a loop nor a template can write
// the operand list of an asm statement: so the lists are macros. WGMMA_D64 has the registers of 64 columns.
#pragma once

#define WGMMA_TEN(t) \
    "%" t "0, %" t "1, %" t "2, %" t "3, %" t "4, %" t "5, %" t "6, %" t "7, %" t "8, %" t "9, "
#define WGMMA_THIRTY WGMMA_TEN("") WGMMA_TEN("1") WGMMA_TEN("2")
#define WGMMA_SIXTY WGMMA_THIRTY WGMMA_TEN("3") WGMMA_TEN("4") WGMMA_TEN("5")
#define WGMMA_NINETY WGMMA_SIXTY WGMMA_TEN("6") WGMMA_TEN("7") WGMMA_TEN("8")

#define WGMMA_D8 "%0, %1, %2, %3"
#define WGMMA_D16 WGMMA_D8 ", %4, %5, %6, %7"
#define WGMMA_D32 WGMMA_TEN("") "%10, %11, %12, %13, %14, %15"
#define WGMMA_D48 WGMMA_D32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_D64 WGMMA_THIRTY "%30, %31"
#define WGMMA_D80 WGMMA_THIRTY "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_D96 WGMMA_D80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_D112 WGMMA_D96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define WGMMA_D128 WGMMA_SIXTY "%60, %61, %62, %63"
#define WGMMA_D144 WGMMA_D128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define WGMMA_D160 WGMMA_D144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define WGMMA_D176 WGMMA_D160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define WGMMA_D192 WGMMA_NINETY "%90, %91, %92, %93, %94, %95"
#define WGMMA_D208 WGMMA_D192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define WGMMA_D224 WGMMA_D208 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define WGMMA_D240 WGMMA_D224 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define WGMMA_D256                              \
    WGMMA_NINETY WGMMA_TEN("9") WGMMA_TEN("10") \
        WGMMA_TEN("11") "%120, %121, %122, %123, %124, %125, %126, %127"

// Operands d[i] and on, "+f" of floats or "+r" of integers.
#define WGMMA_4(in, i) in(d[i]), in(d[i + 1]), in(d[i + 2]), in(d[i + 3])
#define WGMMA_8(in, i) WGMMA_4(in, i), WGMMA_4(in, i + 4)
#define WGMMA_16(in, i) WGMMA_8(in, i), WGMMA_8(in, i + 8)
#define WGMMA_24(in, i) WGMMA_16(in, i), WGMMA_8(in, i + 16)
#define WGMMA_32(in, i) WGMMA_16(in, i), WGMMA_16(in, i + 16)
#define WGMMA_40(in, i) WGMMA_32(in, i), WGMMA_8(in, i + 32)
#define WGMMA_48(in, i) WGMMA_40(in, i), WGMMA_8(in, i + 40)
#define WGMMA_56(in, i) WGMMA_48(in, i), WGMMA_8(in, i + 48)
#define WGMMA_64(in, i) WGMMA_32(in, i), WGMMA_32(in, i + 32)
#define WGMMA_72(in, i) WGMMA_64(in, i), WGMMA_8(in, i + 64)
#define WGMMA_80(in, i) WGMMA_72(in, i), WGMMA_8(in, i + 72)
#define WGMMA_88(in, i) WGMMA_80(in, i), WGMMA_8(in, i + 80)
#define WGMMA_96(in, i) WGMMA_64(in, i), WGMMA_32(in, i + 64)
#define WGMMA_104(in, i) WGMMA_96(in, i), WGMMA_8(in, i + 96)
#define WGMMA_112(in, i) WGMMA_104(in, i), WGMMA_8(in, i + 104)
#define WGMMA_120(in, i) WGMMA_112(in, i), WGMMA_8(in, i + 112)
#define WGMMA_128(in, i) WGMMA_64(in, i), WGMMA_64(in, i + 64)

// One wgmma. `operands` follow d in the instruction, `adds` says whether to add to d; the rest are the asm's.
#define WGMMA(shape_types, registers, operands, adds, factors, ...)                                \
    asm volatile(                                                                                  \
        "{\n"                                                                                      \
        ".reg .pred adds;\n"                                                                       \
        "setp.ne.b32 adds, " adds                                                                  \
        ", 0;\n"                                                                                   \
        "wgmma.mma_async.sync.aligned." shape_types " {" registers "}, " operands ", adds" factors \
        ";\n"                                                                                      \
        "}\n" __VA_ARGS__)

// a in registers: that of mma.m16n8k16 (tensor_core.cuh), of its warp's 16 rows. They must not change before
// the wait.
#define WGMMA_REGISTERS(n, type, registers, operands, adds, transposed, add_operand, ...)          \
    WGMMA(                                                                                         \
        "m64n" n "k16.f32." type "." type, registers, operands, adds,                              \
        ", 1, 1, " transposed, : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), \
        add_operand)

#define WGMMA_OF_TYPE(instruction) \
    if constexpr (IS_BF16<T>) {    \
        instruction("bf16");       \
    } else {                       \
        instruction("f16");        \
    }
