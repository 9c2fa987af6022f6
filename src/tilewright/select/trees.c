/* Walks decision trees, for `trees.py`, which has checked them: a node has one parent at most and
   comes after it, and every number of a node, a cut or a feature is in range.

   All rows walk at once: a set of rows is a bit for each, and a node passes on to its children
   those of its rows that are in the set of its cut, and the others. A child without rows is not
   visited: most are such, since the rows are kernels of one problem. */

#include <stdint.h>

typedef struct {
    double value;     /* of a leaf */
    int32_t cut;      /* -1: a leaf */
    int32_t child[2]; /* rows in the set of the cut, all others */
} Node;

enum { BITS = 64 }; /* rows in one word of a set */

/* How many of `count` increasing thresholds are below `value`; all of them are if it is NaN. */
static int64_t place(double value, const double *thresholds, int64_t count)
{
    int64_t low = 0;
    while (count > 0) {
        const int64_t half = count / 2;
        const int right = !(value <= thresholds[low + half]);
        low = right ? low + half + 1 : low;
        count = right ? count - half - 1 : half;
    }
    return low;
}

/* Of one feature, `values` of each row: the set of every cut, the rows with at most its threshold.
   The cuts' thresholds increase. */
static void sort_rows(const double *values, int64_t rows, const double *thresholds, int64_t cuts,
                      uint64_t *sets, int64_t words)
{
    for (int64_t at = 0; at < cuts * words; at++)
        sets[at] = 0;
    int64_t at = 0;
    for (int64_t row = 0; row < rows; row++) {
        if (row == 0 || values[row] != values[row - 1])
            at = place(values[row], thresholds, cuts);
        if (at < cuts)
            sets[at * words + row / BITS] |= (uint64_t)1 << row % BITS;
    }
    for (int64_t at = words; at < cuts * words; at++)
        sets[at] |= sets[at - words];
}

static void add(double value, uint64_t set, double *totals)
{
    if (set == ~(uint64_t)0) {
        for (int row = 0; row < BITS; row++)
            totals[row] += value;
        return;
    }
    for (; set; set &= set - 1)
        totals[__builtin_ctzll(set)] += value;
}

/* Add to `totals` of each row the values of the leaves that it comes to, one tree after another:
   those of the first half of the trees to the first `rows` totals, the others to those behind.

   x: of each feature the values of `rows` rows. first: of each of `width` features its first cut,
   and behind the last one the number of cuts. thresholds: of each cut. nodes: of all trees. roots:
   the first node of each of `trees` trees. waiting: room for the numbers of the largest tree's
   nodes. sets: room for a set of rows for each cut and each node of the largest tree. */
void walk(const double *x, int64_t rows, int64_t width, const int32_t *first,
          const double *thresholds, const Node *nodes, const int32_t *roots, int64_t trees,
          int32_t *waiting, uint64_t *sets, double *totals)
{
    const int64_t words = (rows + BITS - 1) / BITS;
    uint64_t *reach = sets + first[width] * words; /* the rows of each node that waits */
    for (int64_t at = 0; at < width; at++)
        if (first[at] < first[at + 1])
            sort_rows(x + at * rows, rows, thresholds + first[at], first[at + 1] - first[at],
                      sets + first[at] * words, words);
    for (int64_t tree = 0; tree < trees; tree++) {
        if (tree == trees / 2)
            totals += rows;
        for (int64_t word = 0; word < words; word++)
            reach[word] = ~(uint64_t)0;
        if (rows % BITS)
            reach[words - 1] = ((uint64_t)1 << rows % BITS) - 1;
        int64_t last = 0;
        waiting[0] = roots[tree];
        while (last >= 0) {
            const Node *node = nodes + waiting[last];
            uint64_t *here = reach + last * words;
            if (node->cut < 0) {
                for (int64_t word = 0; word < words; word++)
                    add(node->value, here[word], totals + word * BITS);
                last--;
                continue;
            }
            const uint64_t *set = sets + node->cut * words;
            uint64_t some_in = 0, some_out = 0;
            for (int64_t word = 0; word < words; word++) {
                const uint64_t in = here[word] & set[word], out = here[word] & ~set[word];
                here[word] = out;
                here[words + word] = in;
                some_in |= in;
                some_out |= out;
            }
            if (!some_in) {
                waiting[last] = node->child[1];
            } else if (some_out) {
                waiting[last] = node->child[1];
                waiting[++last] = node->child[0];
            } else {
                waiting[last] = node->child[0];
                for (int64_t word = 0; word < words; word++)
                    here[word] = here[words + word];
            }
        }
    }
}
