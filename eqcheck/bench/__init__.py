"""`eqcheck bench`: engines side by side on a small real pair, timed, each output verified.

workload   prompts, the truth, the draft with its own or a dictated acceptance (`dictated`)
measure    one engine on one workload, timed
arrivals   latency when prompts come one by one
run        all of it
report     JSON, tables, plots
"""
