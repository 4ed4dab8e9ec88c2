"""Benchmarks: our saver beside its peers. Run `python -m tests.benchmarks --help`; pytest collects nothing here."""
