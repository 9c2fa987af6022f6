"""What pipelines ``gluon_ws`` and ``gluon_pingpong`` share: implicit GEMMs of boxes of pixels that
the copy engine brings."""
