"""Side-by-side timings: ``python -m benchmarks`` (see README.md)."""
