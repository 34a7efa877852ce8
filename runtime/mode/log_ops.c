/* The layer of kiln_log_ops_push. */
#define KILN_NO_LOCATIONS
#include "runtime/mode/mode.h"
#include "ir/base/log.h"
#include "ir/base/path.h"

#include <inttypes.h>
#include <stdio.h>

/* "%7 = matmul f32[8,4] f32[4,2] -> f32[8,2] kiln_linear net.c:31" */
RtNode *log_ops_op(Rec *r, kiln_mode *mode, const OpCall *call)
{
    uint64_t number = mode->n_ops - 1;
    RtNode *node = mode_next(r, call);
    char text[SHAPE_TEXT], operands[512] = "";
    size_t used = 0;
    for (uint32_t k = 0; k < call->n_in && used + SHAPE_TEXT + 8 < sizeof operands; k++)
        used += (size_t)snprintf(operands + used, sizeof operands - used, " %s", node_text(call->in[k], text));
    if (node)
        log_always(LOG_OPS, "%%%" PRIu64 " = %s%s -> %s %s%s%s:%d", number, op_name(call->op), operands, node_text(node, text), r->api,
                   r->loc.file ? " " : "", path_name(r->loc.file), r->loc.line);
    return node;
}

void log_ops_end(kiln_mode *mode) { log_always(LOG_OPS, "%" PRIu64 " ops were recorded", mode->n_ops); }

kiln_mode *kiln_log_ops_push(void) { return mode_push(LAYER_LOG_OPS, (Loc){NULL, 0}); }
