"""A small engine for Llama-shaped models with random weights: real prefill, real decode, real caches; no real answers.

It speaks what vLLM speaks to a router, so that Kvlane can be measured on one GPU without one.
"""
