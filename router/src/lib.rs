//! The service: an OpenAI-compatible front end that routes by what the index knows. Empty so far.
