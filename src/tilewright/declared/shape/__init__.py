"""Operations that move elements, cast them, and combine them one by one."""
