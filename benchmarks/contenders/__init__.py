"""The job of ``benchmarks.jobs`` in other frameworks. Each file runs in an environment of its own."""
