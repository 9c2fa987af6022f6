"""Operations on rows: norms, softmax, losses, gates, rotations."""
