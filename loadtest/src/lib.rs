//! Multi-turn conversations against any OpenAI-compatible endpoint. Empty so far.
