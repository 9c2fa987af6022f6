"""Configs as arrays: the same for a part as for the whole, and worked out once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.ops.pool import Pool, each


@dataclass(frozen=True)
class Made:
    size: int
    word: str

    @property
    def twice(self) -> int:
        return 2 * self.size


@dataclass(frozen=True)
class Named:
    name: str


CONFIGS = [Made(n, "odd" if n % 2 else "even") for n in (3, 4, 5, 6)]


def test_columns_are_what_each_config_has():
    c = Pool(CONFIGS).columns
    assert c.size.tolist() == [3, 4, 5, 6] and c.twice.tolist() == [6, 8, 10, 12]
    assert (c.word == "odd").tolist() == [True, False, True, False]


def test_numbers_stand_for_names_in_their_order():
    pool = Pool([Named(name) for name in ("b", "ab", "c", "a")])
    assert pool.columns.by_name.tolist() == [2, 1, 3, 0]
    assert pool.part([0, 2, 3]).columns.by_name.tolist() == [2, 3, 0]


def test_a_function_gives_of_columns_what_it_gives_of_each():
    def more(one, by=1):
        return one.size + by

    c = Pool(CONFIGS).columns
    assert each(c, more).tolist() == [4, 5, 6, 7] and each(CONFIGS[0], more) == 4
    assert each(c, more, 10).tolist() == [13, 14, 15, 16] and each(CONFIGS[0], more, 10) == 13


def test_what_is_neither_number_nor_word_has_columns_too():
    halves = each(Pool(CONFIGS).columns, lambda one: Made(one.size // 2, one.word))
    assert halves.size.tolist() == [1, 2, 2, 3] and halves[3] == Made(3, "even")


def test_a_part_of_a_part_has_its_own_rows():
    pool = Pool(CONFIGS).part([0, 1, 3]).part(np.array([1, 2]))
    assert [*pool] == [CONFIGS[1], CONFIGS[3]] and pool[0] is CONFIGS[1]
    assert pool.columns.size.tolist() == [4, 6]
    assert each(pool.columns, lambda one: one).twice.tolist() == [8, 12]
    assert pool.part([0, 1]) is pool and Pool.of(pool) is pool


def test_the_same_part_is_kept():
    pool = Pool(CONFIGS)
    part = pool.part([1, 2]).columns
    assert pool.part(np.array([1, 2])).columns is part is not pool.part([1, 3]).columns
    assert part.groups(len_of_word) is pool.part([1, 2]).columns.groups(len_of_word)


def len_of_word(one):
    return str(len(one.word))


def test_what_follows_from_configs_is_worked_out_once_for_the_whole():
    asked = []

    def counted(one, by):
        asked.append(one)
        return one.size * by

    pool = Pool(CONFIGS)
    for _ in range(3):
        each(pool.part([1, 2]).columns, counted, 2)
    assert asked == CONFIGS
    assert each(pool.columns, counted, 3).tolist() == [9, 12, 15, 18]  # another question


def test_groups_work_nothing_out_of_the_others():
    def of_odd(one):
        assert one.size % 2
        return one.size

    pool = Pool(CONFIGS)
    for part, places, sizes in ((pool, [0, 2], [3, 5]), (pool.part([1, 2, 3]), [1], [5])):
        groups = part.columns.groups(lambda one: one.word)
        at, c = groups["odd"]
        assert at.tolist() == places and each(c, of_odd).tolist() == sizes
    assert list(pool.part([0, 2]).columns.groups(lambda one: one.word)) == ["odd"]
    alone = Pool(CONFIGS[::2])
    ((at, c),) = alone.columns.groups(lambda one: one.word).values()
    assert at.tolist() == [0, 1] and c is alone.columns


def test_the_same_configs_of_different_pools_have_the_same_columns():
    """By identity: configs that are merely equal may differ in what is asked of them."""
    ones, twos = [Made(n, "one") for n in range(3)], [Made(n, "two") for n in range(2)]
    pools = [Pool((*ones, *twos)), Pool((ones[0], twos[1], ones[1], ones[2]))]
    groups = [pool.columns.groups(lambda one: one.word) for pool in pools]
    assert groups[0]["one"][1] is groups[1]["one"][1]
    assert groups[0]["two"][1] is not groups[1]["two"][1]
    again = Pool([Made(n, "one") for n in range(3)] + twos).columns
    assert again.groups(lambda one: one.word)["one"][1] is not groups[0]["one"][1]
