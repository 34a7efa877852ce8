/*
 * What must hold of a nest, so that no schedule changes a result: each point of each body is run once, in the order in which bodies
 * depend on one another; points that fill no vector have a tail; folds are cut as their order says; tasks are around everything else.
 */
#include "jit/nest.h"

#include "ir/base/status.h"
#include "jit/dot_facts.h"

enum { MOST_DEPTH = 32 };

typedef struct Check {
    const Nest *n;
    const KernelFacts *f;
    uint32_t r;     /* r axes */
    int64_t length; /* points of them, -1: not known */
    NestRef path[MOST_DEPTH];
    uint32_t depth;
    uint32_t next_body;                                 /* of this phase and way: bodies come in order */
    enum { NOT_FOLDING, STARTED, FOLDED, MERGED } fold; /* within STAGE and COLUMNS, and of the sums of a product */
    enum { UNPACKED, OF_ALL, OF_BLOCK } packed[SIDES];  /* of a product: panels of all points of k, or of a block */
    uint32_t products;                                  /* those of several that have been there */
} Check;

static Status broken(const Check *c, NestRef at, const char *rule)
{
    static const char *const name[] = {
#define NEST(id, role, text) #id,
#include "jit/nest.def"
#undef NEST
    };
    return fail(ST_INTERNAL, "broken nest: %s, at node %u (%s)", rule, at, name[c->n->node.at[at].kind]);
}

#define NEED(condition, rule) TRY((condition) ? ST_OK : broken(c, at, rule))

static const NestNode *node_at(const Check *c, NestRef at) { return &c->n->node.at[at]; }

/* A TILES around STRIPS, or a LANES around ROUNDS, is no loop for what is in these. */
static bool loop_for(const Check *c, uint32_t d)
{
    const NestNode *n = node_at(c, c->path[d]);
    NestKind inner = d + 1 < c->depth ? (NestKind)node_at(c, c->path[d + 1])->kind : NEST_KINDS;
    return n->axes && !(n->kind == NEST_TILES && inner == NEST_STRIPS) && !(n->kind == NEST_LANES && inner == NEST_ROUNDS);
}

/* Each axis has one loop over its points, around which are only those that cut it. */
static Status check_axes(const Check *c, NestRef at, uint32_t axes)
{
    for (uint32_t a = 0; a < c->f->k->axes.n; a++) {
        int points = 0;
        for (uint32_t d = 0; d < c->depth; d++) {
            const NestNode *n = node_at(c, c->path[d]);
            NestRole role = nest_role((NestKind)n->kind);
            if (!(n->axes >> a & 1) || role == NEST_ROLE_SCOPE || !loop_for(c, d))
                continue;
            NEED(!points, "an axis has a loop inside the one over its points");
            points += role == NEST_ROLE_LOOP;
        }
        NEED(points == (int)(axes >> a & 1), "an axis has no loop over its points, or one that does not belong there");
    }
    return ST_OK;
}

static const NestNode *in_path(const Check *c, NestKind kind)
{
    for (uint32_t d = 0; d < c->depth; d++)
        if (node_at(c, c->path[d])->kind == kind)
            return node_at(c, c->path[d]);
    return NULL;
}

/* The axes of the other products, where several lie beside each other and this is in one. */
static uint32_t axes_of_others(const Check *c)
{
    const NestNode *product = in_path(c, NEST_PRODUCT);
    return product ? kernel_beside(c->f->k) & ~(1u << (c->f->n_x - c->f->n_products + product->number)) : 0;
}

/* The accumulators of a stage's ordered folds are the lanes of the order, or as many as there are points. */
static Status check_slots(const Check *c, NestRef at)
{
    const NestNode *lanes = in_path(c, NEST_LANES), *steps = in_path(c, NEST_STEPS) ? in_path(c, NEST_STEPS) : in_path(c, NEST_EACH);
    for (VRef v = 0; v < c->f->k->inst.n && (lanes || steps); v++) {
        const Statement *s = &c->n->does[v];
        if (s->kind != STATEMENT_STEP || s->body != node_at(c, at)->number || c->f->k->inst.at[v].order.kind != ORD_LANES)
            continue;
        int64_t held = nest_fold(c->n, c->f, v).slots * (lanes ? lanes->by : 1);
        NEED(held == c->f->order.lanes || (c->length >= 0 && c->length <= held), "accumulators are not the lanes of the order");
    }
    return ST_OK;
}

/* Lanes, chains and blocks of a fold are those of its order. */
static Status check_order(const Check *c, NestRef at)
{
    const NestNode *blocks = in_path(c, NEST_BLOCKS), *canonical = in_path(c, NEST_CANONICAL), *joint = in_path(c, NEST_JOINT);
    const NestNode *lanes = in_path(c, NEST_LANES), *rounds = in_path(c, NEST_ROUNDS), *chains = in_path(c, NEST_CHAINS);
    const NestNode *rows = in_path(c, NEST_STRIP_ROWS), *unroll = in_path(c, NEST_UNROLL);
    Order order = c->f->order;
    int64_t all = order.lanes;
    NEED(blocks ? blocks->by == order.block : c->length >= 0 && c->length <= order.block, "a fold is not cut at the blocks of its order");
    NEED(!lanes || all % lanes->by == 0, "lanes do not divide those of the order");
    NEED(!rounds || rounds->by * rounds->points <= all, "a round is more than the lanes of the order");
    NEED(!joint || all * c->f->schedule->columns % joint->by == 0, "lanes along columns do not divide those of the order");
    NEED(!unroll || unroll->points <= all, "more points have code of their own than the order has lanes");
    NEED(!canonical == !(rows || chains), "a strip is not walked by the lanes of the order");
    NEED(!canonical || canonical->by * (chains ? chains->points : 1) == all, "a strip has other lanes than the order");
    NEED(!chains || chains->by == all, "a chain takes other rows than those of its lane");
    NEED(!rows || rows->by == all, "a lane takes other rows than its own");
    return check_slots(c, at);
}

/* ---- products ---- */

/* One multiplication of each sum at each point of the r axis, or at several of them (DotFacts.each), in blocks of the order. */
static Status check_step(Check *c, NestRef at)
{
    static const NestKind loops[] = {NEST_STEPS, NEST_SQUARES_OF_K, NEST_STRIPS_OF_K};
    const DotFacts dot = dot_scheduled(c->f);
    for (int i = 0; i < 3; i++)
        NEED(!in_path(c, loops[i]) || in_path(c, loops[i])->by % dot.each == 0, "a pair is parted");
    const NestNode *blocks = in_path(c, NEST_BLOCKS);
    NEED(c->fold == STARTED && c->next_body == 0, "sums do not start before what is added");
    NEED(blocks ? blocks->by == dot.block : c->length >= 0 && c->length <= dot.block, "a fold is not cut at the blocks of its order");
    for (int side = 0; side < SIDES && in_path(c, NEST_MULTIPLY); side++) {
        NEED(c->packed[side] != UNPACKED, "a panel is read that is not packed");
        NEED(c->packed[side] == (blocks ? OF_BLOCK : OF_ALL), "a panel has other points than the block");
    }
    c->fold = FOLDED;
    c->next_body = 1;
    return check_axes(c, at, (uint32_t)((1ull << c->f->k->axes.n) - 1) & ~axes_of_others(c));
}

static bool reads_panels(const Check *c, VRef operand)
{
    const KInst *load = &c->f->k->inst.at[dot_uncast(c->f->k, operand)];
    return load->kind == KI_LOAD && c->f->k->args.at[load->arg].panel == c->f->schedule->tile_width;
}

static Status check_pack(Check *c, NestRef at)
{
    bool kept = node_at(c, at)->kind == NEST_KEPT_LANES, lanes = kept || node_at(c, at)->kind == NEST_PACK_LANES;
    NEED(!lanes || in_path(c, NEST_PANELS), "a panel has no place");
    NEED(!kept || reads_panels(c, node_at(c, at)->number), "a panel is not kept, or has other points than a tile");
    c->packed[lanes ? LANE_SIDE : ROW_SIDE] = in_path(c, NEST_BLOCKS) ? OF_BLOCK : OF_ALL;
    return ST_OK;
}

/* Rows of a band come in blocks, at the end of which a tile ends, too. */
static bool in_blocks_of_rows(const Kernel *k)
{
    for (uint32_t a = 0; a < k->args.n; a++)
        if (k->args.at[a].blocks)
            return true;
    return false;
}

/* What an axis is cut into is whole tiles. */
static Status check_tile(const Check *c, NestRef at)
{
    const NestNode *n = node_at(c, at), *cut[] = {in_path(c, NEST_TASK_ROWS), in_path(c, NEST_TASK_TILES), in_path(c, NEST_PANELS)};
    const NestNode *tile = in_path(c, n->kind == NEST_TILE_ROWS ? NEST_GROUP : NEST_TILE);
    NEED(n->by > 0, "a step is no point");
    for (int i = 0; i < 3; i++)
        NEED(!cut[i] || !(cut[i]->axes & n->axes) || cut[i]->by % n->by == 0 || (i == 0 && in_blocks_of_rows(c->f->k)),
             "what is cut is no whole tiles");
    if (!n->axes || !tile)
        return ST_OK;
    NEED(n->kind != NEST_TILE_ROWS || n->points == tile->by, "registers have other rows than the tile");
    NEED(n->kind != NEST_TILE_LANES || tile->by % n->by == 0, "a tile is no whole vectors");
    return ST_OK;
}

static Status check_body(Check *c, NestRef at)
{
    const NestNode *n = node_at(c, at);
    uint32_t x = (uint32_t)((1ull << c->f->n_x) - 1) & ~axes_of_others(c);
    bool stage = n->number < c->f->n_stages;
    if (stage && (in_path(c, NEST_STAGE) || in_path(c, NEST_COLUMNS))) {
        NEED(c->fold == STARTED, "accumulators do not start before what is folded");
        c->fold = FOLDED;
    }
    NEED(n->number >= c->next_body, "bodies are not in order, or one is there twice");
    NEED(n->number == c->next_body && n->number <= c->f->n_stages, "a body is not there");
    NEED(n->own == (in_path(c, NEST_PRODUCT) ? kernel_beside(c->f->k) & x : 0), "a body is another product's");
    NEED(!stage || !in_path(c, NEST_SHARES) == !in_path(c, NEST_CHOSEN), "several tasks do the same points");
    NEED(!in_path(c, NEST_TASK_ROWS) || !in_path(c, NEST_BLOCKS) || in_path(c, NEST_LAST),
         "what follows a sum is done before its last block");
    c->next_body++;
    TRY(check_axes(c, at, stage ? x | c->r : x));
    return stage && nest_ordered(c->n, c->f->k, n->number) ? check_order(c, at) : ST_OK;
}

/* A stage starts, folds, is put together and gives its totals away. */
static Status check_fold(Check *c, NestRef at)
{
    NestKind kind = (NestKind)node_at(c, at)->kind;
    bool start = kind == NEST_START || kind == NEST_DOT_START, merge = kind == NEST_MERGE || kind == NEST_COLUMN_MERGE;
    bool last = kind == NEST_DOT_MERGE;
    NEED(c->fold == (start ? NOT_FOLDING : merge || last ? FOLDED : MERGED), "what is folded is not put together");
    c->fold = start ? STARTED : merge ? MERGED : NOT_FOLDING;
    return ST_OK;
}

/* Points of a loop with lanes where they are known, else -1. */
static int64_t points_of(const Check *c, const NestNode *n)
{
    const NestNode *parent = node_at(c, n->parent);
    if (n->kind == NEST_TILES && parent->kind == NEST_PIECE && parent->axes & n->axes)
        return parent->points;
    if (n->kind == NEST_SUM_LANES && n->points)
        return n->points;
    return nest_points(c->f->k, n->axes);
}

static Status check_tail(const Check *c, NestRef at)
{
    const NestNode *n = node_at(c, at);
    int64_t points = points_of(c, n);
    const NestNode *first = n->child != NEST_NONE ? node_at(c, n->child) : n;
    bool strips = first->kind == NEST_STRIPS;
    if (first->kind == NEST_ROUNDS && points >= 0)
        points %= first->by * first->points;
    NEED(n->by > 0, "a step is no point");
    NEED(n->tail != NEST_TAIL_NONE || n->by == 1 || (points >= 0 && points % n->by == 0), "points that fill no vector have no tail");
    NEED(n->whole == NEST_WHOLE || strips || (n->whole == NEST_WHOLE_NONE && points >= 0 && points < n->by), "whole vectors have no loop");
    bool by_one = n->kind == NEST_SQUARES_OF_K || n->kind == NEST_STRIPS_OF_K; /* points of a sum of its own for each lane */
    NEED((n->tail != NEST_TAIL_SCALAR && n->tail != NEST_TAIL_HALVES) || !c->f->n_r || by_one, "the tail of a fold is scalar");
    NEED(!n->inside || (n->kind == NEST_TILES && !strips && n->whole == NEST_WHOLE &&
                        (n->tail == NEST_TAIL_NONE || n->tail == NEST_TAIL_MASK || n->tail == NEST_TAIL_EARLIER)),
         "vectors at an edge have no code");
    NEED(n->tail != NEST_TAIL_EARLIER || (n->inside && facts_twice(c->f)), "points are computed twice that may not be");
    NEED(n->tail != NEST_TAIL_HALVES || points >= 0, "it is not known of how many points the tail is");
    return ST_OK;
}

static Status check_pieces(const Check *c, NestRef at)
{
    uint32_t number = 0;
    for (NestRef p = node_at(c, at)->child; p != NEST_NONE; p = node_at(c, p)->next, number++) {
        while (number < node_at(c, p)->number)
            NEED(c->f->piece[number++] == 0, "a piece with points is left out");
        NEED(number == node_at(c, p)->number, "a piece is there twice");
    }
    for (; number < c->f->n_pieces; number++)
        NEED(c->f->piece[number] == 0, "a piece with points is left out");
    return ST_OK;
}

/* Only one of these and what follows it is run for a point: strips or single tiles, squares or rows, rows that fill a tile or those that are
 * left, this piece or product or another. */
static bool is_way(const Check *c, const NestNode *n)
{
    bool overlap = n->kind == NEST_TILES && node_at(c, n->parent)->kind == NEST_OVERLAP;
    return overlap || n->kind == NEST_STRIPS || n->kind == NEST_SQUARES || n->kind == NEST_PIECE || n->kind == NEST_PRODUCT;
}

/* Rows that fill no tile have a loop, and a tile has the rows that it is of. */
static Status check_overlap(const Check *c, NestRef at)
{
    const NestNode *n = node_at(c, at), *first = node_at(c, n->child);
    int64_t rows = nest_points(c->f->k, n->axes);
    NEED(n->by > 0 && ((rows >= 0 && rows % n->by == 0) || first->next != NEST_NONE), "rows that fill no tile are left out");
    NEED(node_at(c, first->child)->kind == NEST_OVERLAP_ROWS && node_at(c, first->child)->points == n->by, "a tile has other rows");
    return ST_OK;
}

/* The same of a point that is folded: whole rounds, or vectors. */
static bool is_way_of_fold(const Check *c, const NestNode *n)
{
    return n->kind == NEST_ROUNDS && node_at(c, n->parent)->kind == NEST_LANES;
}

/* The same of a block of rows in a strip: few are taken in chains, or many. */
static bool is_way_of_block(const NestNode *n) { return n->kind == NEST_CANONICAL && n->few && n->next != NEST_NONE; }

/* Each number of rows has one of two. */
static Status check_canonical(const Check *c, NestRef at)
{
    const NestNode *n = node_at(c, at), *other = node_at(c, is_way_of_block(n) ? n->next : node_at(c, n->parent)->child);
    bool chains = node_at(c, n->child)->kind == NEST_CHAIN_TILES;
    NEED(!n->few ||
             (other->kind == NEST_CANONICAL && other->few == n->few && (node_at(c, other->child)->kind == NEST_CHAIN_TILES) != chains),
         "blocks of some numbers of rows are left out");
    return ST_OK;
}

/* What a stage of a strip leaves for later ones is kept when all its rows are folded. */
static Status check_kept(const Check *c, NestRef at)
{
    const NestNode *n = node_at(c, at), *last = n;
    for (NestRef child = n->child; child != NEST_NONE; child = last->next)
        last = node_at(c, child);
    NEED(!nest_keeps(c->f, n->number) || (last->kind == NEST_STRIP_KEEP && last->number == n->number), "a stage of a strip keeps nothing");
    return ST_OK;
}

static Status check_node(Check *c, NestRef at);

static Status check_children(Check *c, NestRef at)
{
    uint32_t before = c->next_body;
    for (NestRef child = node_at(c, at)->child; child != NEST_NONE; child = node_at(c, child)->next) {
        TRY(check_node(c, child));
        bool of_fold = is_way_of_fold(c, node_at(c, child)), of_block = is_way_of_block(node_at(c, child));
        if (of_fold)
            c->fold = STARTED;
        else if (!of_block && (!is_way(c, node_at(c, child)) || node_at(c, child)->next == NEST_NONE))
            continue;
        NEED(c->next_body == (of_fold || of_block ? before : c->f->n_stages) + 1, "one way of several leaves something out");
        c->next_body = before;
    }
    return ST_OK;
}

static Status check_node(Check *c, NestRef at)
{
    const NestNode *n = node_at(c, at);
    NEED(c->depth < MOST_DEPTH, "too deep");
    NEED(!n->task || node_at(c, n->parent)->task || n->kind == NEST_ROWS || n->kind == NEST_SHARES ||
             node_at(c, n->parent)->kind == NEST_PIECE,
         "tasks are in a loop that is none");
    if (n->kind == NEST_BODY)
        return check_body(c, at);
    if (n->kind == NEST_DOT_STEP)
        return check_step(c, at);
    if (n->kind == NEST_PACK_ROWS || n->kind == NEST_PACK_LANES || n->kind == NEST_KEPT_LANES || n->kind == NEST_PLACES)
        return check_pack(c, at);
    if (nest_role((NestKind)n->kind) == NEST_ROLE_DO && n->kind != NEST_COMBINE && n->kind != NEST_DOT_COMBINE)
        return check_fold(c, at);
    if (n->kind == NEST_TILES || n->kind == NEST_LANES || n->kind == NEST_JOINT || n->kind == NEST_SUM_LANES ||
        n->kind == NEST_SQUARES_OF_K || n->kind == NEST_STRIPS_OF_K)
        TRY(check_tail(c, at));
    if (n->kind == NEST_TILE || n->kind == NEST_GROUP || n->kind == NEST_TILE_ROWS || n->kind == NEST_TILE_LANES)
        TRY(check_tile(c, at));
    if (n->kind == NEST_OVERLAP)
        TRY(check_overlap(c, at));
    if (n->kind == NEST_PIECES)
        TRY(check_pieces(c, at));
    if (n->kind == NEST_STRIP_STAGE)
        TRY(check_kept(c, at));
    if (n->kind == NEST_CANONICAL)
        TRY(check_canonical(c, at));
    if (n->kind == NEST_PRODUCT) {
        NEED(n->number == c->products++, "a product is left out, or there twice");
        c->packed[LANE_SIDE] = UNPACKED;
    }
    bool ends = n->kind != NEST_ROUNDS || is_way_of_fold(c, n) || (c->length >= 0 && c->length % (n->by * n->points) == 0);
    NEED(ends, "rounds do not end where the points do");
    NEED((n->kind != NEST_UNROLL && n->kind != NEST_EACH) || n->points == c->length, "other points have code of their own than there are");
    NEED(n->kind != NEST_SHARES || facts_place(c->f) != VREF_NONE, "there are no places that can be shared out");
    NEED(n->kind != NEST_CHOSEN || in_path(c, NEST_SHARES), "points are left to other tasks that do not have them");
    NEED(n->kind != NEST_SQUARES || (n->by > 0 && n->points % n->by == 0), "a band is no whole squares");
    c->path[c->depth++] = at;
    TRY(check_children(c, at));
    c->depth--;
    return ST_OK;
}

/* Which bodies a phase has: all of them; a stage; or, where partial results have been put together, the x points behind the last stage. */
static Status check_phase(Check *c, NestRef at)
{
    const NestNode *n = node_at(c, at);
    uint32_t x_points = c->f->n_stages, stage = n->number / 2;
    bool last = stage + 1 == x_points;
    c->depth = 0;
    c->next_body = !n->split ? 0 : n->number % 2 ? x_points : stage;
    uint32_t before = c->next_body;
    c->fold = NOT_FOLDING;
    c->packed[LANE_SIDE] = c->packed[ROW_SIDE] = UNPACKED;
    c->products = 0;
    TRY(check_children(c, at));
    NEED(c->products == (c->f->n_products > 1 ? c->f->n_products : 0), "a product is left out");
    NEED(c->fold == NOT_FOLDING, "what is folded is not put together");
    uint32_t end = !n->split ? x_points + 1 : n->number % 2 ? before + last : before + 1;
    NEED(c->next_body == end, "a body is not there");
    return ST_OK;
}

Status nest_verify(const Nest *n, const KernelFacts *f)
{
    Check check = {.n = n, .f = f, .r = kernel_r_axes(f->k)}, *c = &check;
    uint32_t phases = 0;
    check.length = nest_points(f->k, check.r);
    for (NestRef at = n->phase; at != NEST_NONE; at = node_at(c, at)->next) {
        bool split = node_at(c, at)->split;
        NEED(split ? node_at(c, at)->number == phases : (node_at(c, at)->next == NEST_NONE || node_at(c, node_at(c, at)->next)->joined),
             "phases are not in order");
        TRY(check_phase(c, at));
        phases += split;
    }
    if (phases != (f->schedule->split == SPLIT_NEVER ? 0 : 2 * f->n_stages))
        return fail(ST_INTERNAL, "broken nest: %u phases of a kernel of %u stages", phases, f->n_stages);
    return ST_OK;
}
