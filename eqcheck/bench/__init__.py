"""`eqcheck bench`: engines side by side on a small real pair, timed, each output verified.

workload   prompts, the truth, the draft with its own or a dictated acceptance (`dictated`)
measure    one engine on one workload, timed and verified
arrivals   latency when prompts come one by one
sampled    what sampling costs
run        all of it
report     JSON, tables, plots
"""
