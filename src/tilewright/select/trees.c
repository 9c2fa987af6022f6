/* Walks decision trees, for `trees.py`, which has checked them: the children of a node come after
   it, and every number of a node or a feature is in range. */

#include <stdint.h>

typedef struct {
    double threshold; /* go left if the feature is at most this; of a leaf, its value */
    int32_t feature;  /* -1: a leaf */
    int32_t child[2]; /* left, right */
} Node;

typedef struct Step {
    double threshold;
    const struct Step *child[2]; /* of a leaf, itself */
    int64_t feature;
} Step;

typedef struct {
    int32_t node;  /* the node itself, or the one that every row comes to from it */
    int32_t depth; /* steps from there to the farthest leaf */
} Way;

/* Rows that walk side by side: their steps do not wait for one another. */
enum { TOGETHER = 16 };

static int alike(const double *x, int64_t rows, int64_t width, int32_t feature)
{
    for (int64_t row = 1; row < rows; row++)
        if (x[row * width + feature] != x[feature])
            return 0;
    return 1;
}

/* Add to `totals` of each row the values of the leaves that it comes to, one tree after another.

   x: `rows` rows, a multiple of `TOGETHER` and one at least, of `width` features. nodes: `count` of
   them, of all trees. roots: the first node of each of `trees` trees. steps, ways, same: room for
   `count` steps, `count` ways and `width` bytes.

   Many features are the same in all rows, which are of one problem. Where a node decides by such a
   feature, all rows go to the same child, and no row walks through the node. */
void walk(const double *x, int64_t rows, int64_t width, const Node *nodes, int64_t count,
          const int32_t *roots, int64_t trees, Step *steps, Way *ways, char *same, double *totals)
{
    for (int32_t feature = 0; feature < width; feature++)
        same[feature] = (char)alike(x, rows, width, feature);
    for (int64_t at = count - 1; at >= 0; at--) {
        const Node *node = nodes + at;
        const int32_t itself = (int32_t)at;
        ways[at] = (Way){itself, 0};
        steps[at] = (Step){node->threshold, {steps + at, steps + at}, 0};
        if (node->feature < 0)
            continue;
        if (same[node->feature]) {
            ways[at] = ways[node->child[!(x[node->feature] <= node->threshold)]];
            continue;
        }
        const Way left = ways[node->child[0]], right = ways[node->child[1]];
        ways[at].depth = 1 + (left.depth > right.depth ? left.depth : right.depth);
        steps[at] = (Step){
            node->threshold, {steps + left.node, steps + right.node}, node->feature};
    }
    for (int64_t tree = 0; tree < trees; tree++) {
        const Way way = ways[roots[tree]];
        for (int64_t first = 0; first < rows; first += TOGETHER) {
            const double *values = x + first * width;
            const Step *at[TOGETHER];
            for (int row = 0; row < TOGETHER; row++)
                at[row] = steps + way.node;
            for (int32_t deep = 0; deep < way.depth; deep++)
                for (int row = 0; row < TOGETHER; row++) {
                    const Step *step = at[row];
                    const double value = values[row * width + step->feature];
                    at[row] = step->child[!(value <= step->threshold)];
                }
            for (int row = 0; row < TOGETHER; row++)
                totals[first + row] += at[row]->threshold;
        }
    }
}
