"""Writes kernels as a folder that Hugging Face's `kernels` loads. It needs torch and Triton alone.

A problem's plan is data: kernels, their constants, a grid, arguments. So the folder has the source
of the kernels in Triton, the plans of some problems, and a file that launches them (`launch`). A
call of another problem is refused.
"""
