"""What a report shows beyond the bare call: user frames, source text, names of models, the
calls before it; and the verdict about a call that is wrong by itself."""
