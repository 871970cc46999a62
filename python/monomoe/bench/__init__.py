"""What `python -m monomoe bench` measures, and how: docs/bench.md.

    cases    the named shapes, their work and their inputs
    targets  what a measurement should reach, and the verdict
    device   the machine: clock, memory, launches, its own state
    systems  dense, MonoMoE and torch behind one interface
    rivals   the same for packages that others made
    correct  no time without a right result
    measure  interleaved samples of one case
    record   one JSON line a measurement
    report   tables and verdicts from records alone
"""
