"""What runs on a cluster and trains nothing: notebooks, shells, TensorBoard, commands, inference.

A task is an entry of the queue. `jobs/task.py` starts its process as a Ray job. That runs the
program on a node, says where it answers, and ends it when nobody uses it. People reach it through
the service's own proxy (``govray/platform/service/tasks``), never directly.
"""
