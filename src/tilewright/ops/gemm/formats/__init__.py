"""Files of other libraries that declare GEMM kernels."""
