"""The main job on real models, as a story that checks itself.

``stack`` starts the processes, ``traffic`` plays two tenants, ``door`` asks the judge, ``story`` holds what
was seen against what was promised, ``run`` is the order of events.
"""
