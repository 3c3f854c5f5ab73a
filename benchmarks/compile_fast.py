"""XLA's flags for programs that are compiled to run a few times: compiling well takes longer than running.

`python -m benchmarks.compile_fast` prints them.
"""

import importlib.metadata

COMPILE_FAST = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
# A quarter of the time. XLA ends the process if it does not know a flag, so this one is for releases that were tried.
if importlib.metadata.version("jaxlib").startswith("0.10."):
    COMPILE_FAST += " --xla_cpu_use_fusion_emitters=false"

if __name__ == "__main__":
    print(COMPILE_FAST)
