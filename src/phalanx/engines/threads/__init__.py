"""The threads engine: ranks are threads of this process; one of them runs at a time."""
