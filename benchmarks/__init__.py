"""Measurements of the reference engines: of eqcheck's repository, and not of its wheel.

`make bench` and `python -m benchmarks` time engines side by side on a small real pair, and verify each output:

workload   prompts, the truth, the draft with its own or a dictated acceptance (`dictated`)
measure    one engine on one workload, timed and verified
arrivals   latency when prompts come one by one
sampled    what sampling costs
run        all of it
report     JSON, tables, plots
why        where the speed comes from, and what formulas predict (`law`, `costs`, `traces`, `sizes`)
lawreport  JSON, tables, plots (`lawplots`) of that
command    the command

pair/      the pair: a trained target and its draft, and how they are trained
heads/     heads for the target of the pair: how they are trained, and how much of what they propose is accepted
"""
