"""What each compiler makes of a kernel, stage by stage, for any architecture, with or without a GPU.

`opening` captures an implementation's launches and runs its compiler stage by stage; `screen` and `page` show
every stage.  Imported by commands only.
"""
