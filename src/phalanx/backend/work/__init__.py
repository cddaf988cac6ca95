"""Operations in flight: `Work` and `Future`, when they complete, the buffers that they hold,
and the events that torch's profilers record of them."""
