/*
 * The nest of a product (FORM_CONTRACT): both operands cut into tiles of registers, by one of four ways (jit/llvm/cpu/contract.h). Those of
 * a large one, packed:
 *
 *     nest                                    a[i, k] @ b[k, j], with 512 bits
 *       for i by 126 rows task
 *         for j by 512 columns task
 *           for k by 256 block
 *             pack v0
 *             for j by 64 panels
 *               pack v1
 *               for j by 32 tile
 *                 for i by 14 tile
 *                   multiply
 *                     start v2
 *                     for k
 *                       for i unroll 14
 *                         for j by 16 vector
 *                           step v2
 *                     merge v2
 *                   last
 *                     for i
 *                       for j by 32 vector
 *                         store a2
 *
 * Several products of one left operand share tasks and what is packed of it; their tiles are numbered through:
 *
 *     nest                                    a[i, k] @ b[k, j], a[i, k] @ c[k, l]
 *       for i by 126 rows task
 *         for jl by 512 columns task
 *           for k by 256 block
 *             pack v0
 *             product 0
 *               for j by 64 panels
 *                 ...
 *             product 1
 *               for l by 64 panels
 *                 ...
 *
 * Of few results and a long sum blocks are tasks (jit/fuse/blocks.c):
 *
 *     nest
 *       phase 0
 *         for i by 64 rows task
 *           for j by 32 columns task
 *             for k by 256 block task
 *               for j by 32 tile
 *                 for i by 8 tile
 *                   start v2
 *                   ...
 *                   merge v2
 *       phase 1
 *         for i by 64 rows task
 *           for j by 32 columns task
 *             combine v2
 *             last
 *               ...
 *
 * Points past the end of an axis are in the last tile and panel, as anything; what follows the sum leaves them out.
 */
#include "jit/nest_build.h"

#include "jit/dot_facts.h"

static uint32_t axis_bit(int axis) { return axis == NO_AXIS ? 0 : 1u << axis; }

typedef struct Product {
    NestBuild *b;
    const Schedule *s;
    DotFacts dot;           /* of the product at hand */
    uint32_t rows, columns; /* axes; these of the product at hand */
} Product;

static NestRef add_tail(Product *p, NestRef parent, NestKind kind, uint32_t axes, int64_t by, NestTail tail)
{
    return nest_add(p->b, parent, (NestNode){.kind = (uint8_t)kind, .axes = axes, .by = by, .tail = (uint8_t)tail});
}

static NestRef add_loop(Product *p, NestRef parent, NestKind kind, uint32_t axes, int64_t by)
{
    return add_tail(p, parent, kind, axes, by, NEST_TAIL_NONE);
}

static NestRef add_tasks(Product *p, NestRef parent, NestKind kind, uint32_t axes, int64_t by)
{
    return nest_add(p->b, parent, (NestNode){.kind = (uint8_t)kind, .axes = axes, .by = by, .task = true});
}

static NestRef add_do(Product *p, NestRef parent, NestKind kind, uint32_t number)
{
    return nest_add(p->b, parent, (NestNode){.kind = (uint8_t)kind, .number = number});
}

static NestTail mask_beyond(int64_t points, int64_t by) { return nest_whole_steps(points, by) ? NEST_TAIL_NONE : NEST_TAIL_MASK; }

static int64_t columns(const Product *p) { return nest_points(p->b->k, p->columns); }

/* The points of the r axis, or of a block of it: each, or two of them by pairs, is a step of all sums in registers. */
static void steps(Product *p, NestRef loop)
{
    int64_t by = p->s->way == WAY_PACKED || p->s->way == WAY_DOTS ? p->dot.lanes : p->s->tile_width;
    NestRef lanes = loop;
    bool strips = p->s->way == WAY_STRIPS;
    NestTail tail = strips || p->s->way == WAY_DIRECT ? mask_beyond(columns(p), by) : NEST_TAIL_NONE;
    if (strips && p->s->task_rows > p->s->tile_rows)
        lanes = add_loop(p, lanes, NEST_GROUP, p->rows, p->s->tile_rows);
    if (strips)
        lanes = add_tail(p, lanes, NEST_TILE_LANES, p->columns, by, tail);
    lanes = nest_add(p->b, lanes, (NestNode){.kind = NEST_TILE_ROWS, .axes = p->rows, .by = 1, .points = p->s->tile_rows});
    if (!strips)
        lanes = add_tail(p, lanes, NEST_TILE_LANES, p->columns, by, tail);
    add_do(p, lanes, NEST_DOT_STEP, p->dot.reduce);
}

static void sums(Product *p, NestRef parent)
{
    int64_t square = p->dot.lanes * p->dot.each;
    add_do(p, parent, NEST_DOT_START, p->dot.reduce);
    if (p->s->way == WAY_STRIPS)
        steps(p, add_tail(p, parent, NEST_STRIPS_OF_K, p->b->r, STRIP_STEPS * p->dot.each, NEST_TAIL_SCALAR));
    else if (p->s->way == WAY_DOTS)
        steps(p, add_tail(p, parent, NEST_SQUARES_OF_K, p->b->r, square,
                          nest_whole_steps(p->b->length, square) ? NEST_TAIL_NONE : NEST_TAIL_SCALAR));
    else
        steps(p, add_loop(p, parent, NEST_STEPS, p->b->r, p->dot.each));
    add_do(p, parent, NEST_DOT_MERGE, p->dot.reduce);
}

/* So many rows of a tile that is read in place; -1: where a row of the image ends it may have fewer. */
static int64_t whole_rows(const Product *p, int64_t rows)
{
    DotPlaces places;
    bool there = dot_places(p->b->f, p->dot.operand[ROW_SIDE], p->dot.axis[ROW_SIDE], &places);
    return there && dot_places_whole(&places, rows) ? rows : -1;
}

/* What follows the sums of a tile. */
static void epilogue(Product *p, NestRef parent)
{
    bool turned = dot_turned(p->b->f, &p->dot);
    NestRef at = add_loop(p, parent, NEST_SUM_POINTS, turned ? p->columns : p->rows, 1);
    NestNode lanes = {.kind = NEST_SUM_LANES, .axes = turned ? p->rows : p->columns};
    lanes.by = turned ? dot_row_lanes(p->s) : p->s->tile_width;
    lanes.points = turned ? p->s->tile_rows : 0;
    lanes.tail = (uint8_t)mask_beyond(turned ? whole_rows(p, lanes.points) : columns(p), lanes.by);
    uint32_t own = kernel_beside(p->b->k) & p->columns;
    nest_add(p->b, nest_add(p->b, at, lanes), (NestNode){.kind = NEST_BODY, .number = p->b->f->n_stages, .own = own});
}

static NestRef tile(Product *p, NestRef parent)
{
    return add_loop(p, add_loop(p, parent, NEST_TILE, p->columns, p->s->tile_width), NEST_GROUP, p->rows, p->s->tile_rows);
}

static NestRef blocks(Product *p, NestRef parent)
{
    return p->dot.one_block ? parent : add_loop(p, parent, NEST_BLOCKS, p->b->r, p->dot.block);
}

typedef void Make(Product *p, NestRef parent);

/* What is done for each product. */
static void each_product(Product *p, NestRef parent, Make *make)
{
    const DotFacts all = p->dot;
    const uint32_t n = p->b->f->n_products;
    for (uint32_t i = 0; i < n; i++) {
        p->dot = dot_product(p->b->f, &all, i);
        p->columns = axis_bit(p->dot.axis[LANE_SIDE]);
        make(p, n > 1 ? add_do(p, parent, NEST_PRODUCT, i) : parent);
    }
    p->dot = all;
}

static NestRef lane_panels(Product *p, NestRef block)
{
    NestRef panels = add_loop(p, block, NEST_PANELS, p->columns, p->s->panels * p->s->tile_width);
    add_do(p, panels, dot_reads_panels(p->b->f, &p->dot) ? NEST_KEPT_LANES : NEST_PACK_LANES, p->dot.operand[LANE_SIDE]);
    return panels;
}

static void packed_columns(Product *p, NestRef block)
{
    NestRef at = tile(p, lane_panels(p, block));
    sums(p, add_do(p, at, NEST_MULTIPLY, 0));
    epilogue(p, p->dot.one_block ? at : add_do(p, at, NEST_LAST, 0));
}

/* `folds`: a block is a phase. */
static void packed(Product *p, NestRef task, bool folds)
{
    NestRef block = folds ? task : blocks(p, task);
    add_do(p, block, p->s->in_place ? NEST_PLACES : NEST_PACK_ROWS, p->dot.operand[ROW_SIDE]);
    each_product(p, block, packed_columns);
}

/* Registers have a tile's sums through all blocks. */
static void unpacked(Product *p, NestRef task)
{
    NestRef at = tile(p, task);
    sums(p, blocks(p, at));
    epilogue(p, at);
}

static void strips(Product *p, NestRef task)
{
    sums(p, add_loop(p, task, NEST_BLOCKS, p->b->r, p->dot.block));
    epilogue(p, p->s->task_rows > p->s->tile_rows ? tile(p, task) : add_loop(p, task, NEST_TILE, p->columns, p->s->tile_width));
}

/* A phase in which blocks are tasks: no task sees the sums of another. */
static void block_sums(Product *p, NestRef task)
{
    NestRef block = add_tasks(p, task, NEST_BLOCKS, p->b->r, p->dot.block), at = block;
    if (p->s->way == WAY_PACKED) {
        add_do(p, block, NEST_PACK_ROWS, p->dot.operand[ROW_SIDE]);
        at = lane_panels(p, block);
    }
    at = tile(p, at);
    sums(p, p->s->way == WAY_PACKED ? add_do(p, at, NEST_MULTIPLY, 0) : at);
}

/* The one behind it. */
static void combined(Product *p, NestRef task)
{
    add_do(p, task, NEST_DOT_COMBINE, p->dot.reduce);
    epilogue(p, tile(p, add_do(p, task, NEST_LAST, 0)));
}

static NestRef tasks(Product *p, NestRef phase)
{
    uint32_t columns_of_all = p->columns | kernel_beside(p->b->k);
    NestRef at = add_tasks(p, phase, NEST_ROWS, p->b->x & ~p->rows & ~columns_of_all, 1);
    at = add_tasks(p, at, NEST_TASK_ROWS, p->rows, p->s->task_rows);
    return add_tasks(p, at, NEST_TASK_TILES, columns_of_all, p->s->task_tiles * p->s->tile_width);
}

void nest_product(NestBuild *b)
{
    const Schedule *s = b->s;
    Product p = {.b = b, .s = s, .dot = dot_scheduled(b->f)};
    bool folds = p.dot.sums_rows && s->way == WAY_PACKED; /* a schedule may ask for another: its only phase is the whole sum */
    p.rows = axis_bit(p.dot.axis[ROW_SIDE]) | axis_bit(p.dot.outer);
    p.columns = axis_bit(p.dot.axis[LANE_SIDE]);
    if (s->split != SPLIT_NEVER) {
        block_sums(&p, tasks(&p, nest_add(b, NEST_NONE, (NestNode){.kind = NEST_PHASE, .split = true})));
        combined(&p, tasks(&p, nest_add(b, NEST_NONE, (NestNode){.kind = NEST_PHASE, .number = 1, .split = true})));
        return;
    }
    NestRef at = nest_add(b, NEST_NONE, (NestNode){.kind = NEST_PHASE});
    if (folds)
        at = nest_add(b, at, (NestNode){.kind = NEST_BLOCKS, .axes = b->r, .by = p.dot.block});
    at = tasks(&p, at);
    if (s->way == WAY_PACKED)
        packed(&p, at, folds);
    else
        each_product(&p, at, s->way == WAY_STRIPS ? strips : unpacked);
}
