"""The plan stage: a pure function from a request's facts and the targets' state to an ordered list of candidates.

route = plan(facts, prediction, policy, catalog, fleet)
route.candidates[0].target, route.candidates[0].reason
"""
