"""Compiler options for libraries that include vector_math.h."""

VECTOR_MATH_COPTS = [
    "-O3",
    "-fno-trapping-math",
    "-fopenmp-simd",
]
