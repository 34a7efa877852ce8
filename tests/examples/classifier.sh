#!/bin/sh
# classifier.sh PROGRAM: two batches; probabilities add up; the second call compiles nothing and runs kernels.
out=$("$1") || { echo "$out"; exit 1; }
echo "$out"
echo "$out" | awk '
    /^(first|second) batch/ { batch++; kernels = $5; compiled = $7
        if (kernels < 1) bad = "no kernels"
        if (batch == 2 && compiled != 0) bad = "the second batch compiled" }
    /images per class:/ { sum = 0; for (i = 4; i <= NF; i++) sum += $i; if (NF != 13 || sum != 256) bad = "classes" }
    /first image:/ { sum = 0; for (i = 3; i <= NF; i++) sum += $i; if (NF != 12 || sum < 0.99 || sum > 1.01) bad = "first image" }
    /add up to/ { if ($NF < 255.99 || $NF > 256.01) bad = "sum " $NF }
    END { if (batch != 2) bad = "batches"; if (bad) { print "wrong: " bad; exit 1 } }'
