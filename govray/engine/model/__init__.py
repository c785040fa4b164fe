"""Models: layer groups, adapters, keyed dropout, the built-in GPT, transformers."""
