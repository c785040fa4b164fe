"""What runs on a cluster and trains nothing: notebooks, shells, TensorBoard, commands, inference.

A task is an entry of the queue. Its process, which `jobs/task.py` starts as a Ray job, runs the
program on a node, says where it answers, and ends it when nobody uses it. People reach it through
the service's own proxy (``govray/service/tasks``), never directly.
"""
