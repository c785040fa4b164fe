"""The proxy before notebooks, shells and TensorBoard, on an origin of its own for each task."""
