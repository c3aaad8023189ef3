"""How a library that includes vector_math.h is compiled."""

VECTOR_MATH_COPTS = [
    "-O3",
    "-fno-trapping-math",
    "-fopenmp-simd",
]
