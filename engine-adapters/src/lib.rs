//! Each engine's dialect in and out, turned into the words of `kvlane-indexer`. Empty so far.
