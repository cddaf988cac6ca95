"""Operations in flight: Work and Future, when they complete, the buffers they hold."""
