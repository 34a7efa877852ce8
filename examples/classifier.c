/*
 * A two-layer classifier, forward: 256 images of 28 x 28 through 1024 hidden units to 10 classes.
 *
 *     p = softmax(relu(x w1 + b1) w2 + b2)
 *
 * The weights are random, so the answers mean nothing; the shape of the program is that of a real one. The model is a
 * kiln_function: traced at its first call, after which a call costs one look-up. Prints how many images fell into each class,
 * the first image's probabilities, and what each of two calls cost.
 */
#include <kiln.h>
#include <math.h>
#include <stdio.h>
#include <time.h>

enum { BATCH = 256, PIXELS = 28 * 28, HIDDEN = 1024, CLASSES = 10 };

typedef struct Model {
    kiln_tensor *w1, *b1, *w2, *b2;
} Model;

/* Random weights, scaled so that each layer keeps the size of its input (He et al. 2015). */
static Model make_model(void)
{
    return (Model){
        kiln_normal(KILN_F32, KILN_SHAPE(PIXELS, HIDDEN), 0, sqrt(2.0 / PIXELS)),
        kiln_normal(KILN_F32, KILN_SHAPE(HIDDEN), 0, 0.1),
        kiln_normal(KILN_F32, KILN_SHAPE(HIDDEN, CLASSES), 0, sqrt(2.0 / HIDDEN)),
        kiln_normal(KILN_F32, KILN_SHAPE(CLASSES), 0, 0.1),
    };
}

/* in: images. out: probabilities, and each image's class. */
static void forward(kiln_tensor **in, kiln_tensor **out, void *model_)
{
    const Model *m = model_;
    kiln_tensor *hidden = kiln_relu(kiln_add(kiln_matmul(in[0], m->w1), m->b1));
    kiln_tensor *logits = kiln_add(kiln_matmul(hidden, m->w2), m->b2);
    out[0] = kiln_softmax(logits, -1);
    out[1] = kiln_argmax_axis(logits, -1, false);
}

static double seconds(void)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Classifies one batch and prints what came out. */
static kiln_status classify(kiln_function *model, const char *name)
{
    kiln_tensor *images = kiln_uniform(KILN_F32, KILN_SHAPE(BATCH, PIXELS), 0, 1), *out[2];
    kiln_status status = kiln_eval(images);
    if (status != KILN_OK)
        return status;

    kiln_stats before, after;
    kiln_get_stats(&before);
    double start = seconds();
    status = kiln_function_call(model, &images, out);
    if (status == KILN_OK)
        status = kiln_eval_many(out, 2);
    double time = seconds() - start;
    kiln_get_stats(&after);
    if (status != KILN_OK)
        return status;

    float p[CLASSES];
    static int64_t label[BATCH];
    status = kiln_read(kiln_select(out[0], 0, 0), KILN_F32, p, sizeof p);
    if (status == KILN_OK)
        status = kiln_read(out[1], KILN_I64, label, sizeof label);
    double total;
    if (status == KILN_OK)
        status = kiln_item(kiln_sum(out[0]), &total);
    if (status != KILN_OK)
        return status;

    int count[CLASSES] = {0};
    for (int i = 0; i < BATCH; i++)
        count[label[i]]++;
    printf("%s: %.2f ms, %lld kernels, %lld compiled\n  images per class:", name, time * 1e3, (long long)(after.kernels - before.kernels),
           (long long)(after.compiles - before.compiles));
    for (int i = 0; i < CLASSES; i++)
        printf(" %d", count[i]);
    printf("\n  first image:     ");
    for (int i = 0; i < CLASSES; i++)
        printf(" %.3f", (double)p[i]);
    printf("\n  all probabilities add up to %.3f\n", total);
    return KILN_OK;
}

int main(void)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_seed(7);
    Model weights = make_model();
    kiln_status status = kiln_eval_many((kiln_tensor *[]){weights.w1, weights.b1, weights.w2, weights.b2}, 4);
    kiln_function *model = kiln_function_new(forward, 1, 2, &weights);
    if (status == KILN_OK)
        status = classify(model, "first batch ");
    if (status == KILN_OK)
        status = classify(model, "second batch");
    if (status != KILN_OK)
        fprintf(stderr, "classifier: %s\n", kiln_error_message());
    kiln_function_free(model);
    kiln_scope_end(scope);
    return status != KILN_OK;
}
