"""Operations that sum, or pick the largest: reductions and pooling."""
