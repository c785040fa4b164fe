"""The driver: one process that starts attempts on Ray and decides what a failure means."""
