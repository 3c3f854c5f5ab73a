"""XLA's flags for programs that are compiled to run a few times: compiling well takes longer than running.

`python -m benchmarks.compile_fast` prints them.
"""

import importlib.metadata

_RELEASE = tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2]))
COMPILE_FAST = "--xla_backend_optimization_level=0"
if _RELEASE >= (0, 7):  # jaxlib 0.6 refuses to compile some programs with it: "too many extra compilation parts"
    COMPILE_FAST += " --xla_cpu_parallel_codegen_split_count=1"
# A quarter of the time. jaxlib 0.12 has no flag instead of it, and XLA ends a process if it does not know a flag.
# With the two above, jaxlib 0.12.0.1 compiles in half the time that it takes without them; on top of these,
# `xla_cpu_opt_preset`, `xla_llvm_disable_expensive_passes` and `xla_cpu_prefer_vector_width` changed little.
if _RELEASE == (0, 10):
    COMPILE_FAST += " --xla_cpu_use_fusion_emitters=false"

if __name__ == "__main__":
    print(COMPILE_FAST)
