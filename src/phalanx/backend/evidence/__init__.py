"""What a report shows beyond the call: frames, source text, names, histories."""
