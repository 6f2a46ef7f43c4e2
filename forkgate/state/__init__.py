"""What outlives a process, in ``state_dir``: where each file is, and how it is written so that it survives.

``paths`` names every file, ``whole`` replaces one, ``lock`` keeps a second ``serve`` out, ``table_file``
keeps the last route table, ``latch`` keeps rollbacks, ``home`` says where home is once a promotion moved it,
``unreadable`` says what a latch that nobody can read is taken for.

Imports nothing: the command line needs ``paths`` alone, and starts fast.
"""
