"""The benchmarks of scripts/bench.py, one module each."""
