"""The data plane: the pipeline of a request, its stages in folders, and the tiers that send requests of their own.

The stages, in the order in which they may import each other: http, parse, admit, plan, dispatch, judge, relay, settle.

    pipeline = RequestPipeline(config=config, directory=directory, …)
    server = HttpServer(model_routes(pipeline), fallback_route(pipeline, control_plane_proxy))
    await server.listen(listener)
"""
