"""Everything that runs: processes, their wiring, the configuration file, commands, migrations and the demo.

    weighbridge serve --config weighbridge.yaml

or, in a program, one process's plane at a time:

    plane = DataPlane(load(path, environment), environment, path, RuntimeFolder(folder))
    async with plane.serving() as health:
        ...
"""
