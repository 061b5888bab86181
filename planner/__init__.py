"""Plans and simulations of own GPUs, which serving never imports: what a model needs, how a fleet does, and what it saves.

shape, gpu = model_named("llama-3-70b"), gpu_named("h100")  # planner.plans: sizing, prices, manifests
measured = FleetSimulation(spec, machine.steps, read_trace(path)).run()  # planner.simulate: a trace on simulated engines
bills = fleet_bills(Steps(planned.demand), pool, scale, wait_s=2.0)  # planner.savings: the month's bill
"""
