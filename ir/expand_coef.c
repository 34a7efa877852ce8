/*
 * The polynomials of the math functions, for F32 and F64, lowest coefficient first. Derived by
 * tests/accuracy/coefficients.py (minimax fits, rounded one by one); the number before each row is the largest error of the
 * approximation, rounded coefficients included, relative to the function.
 */
#include "ir/expand_float.h"

/* e^r = 1 + r + r^2 P(r), |r| <= ln2 / 2 */
const Poly poly_exp = {{
    /* f32, 2^-28.2 */
    {5, {0x1.fffffcp-2, 0x1.55548ap-3, 0x1.55584ep-5, 0x1.123f22p-7, 0x1.6acfeep-10}},
    /* f64, 2^-57.0 */
    {10,
     {0x1.000000000000ap-1, 0x1.55555555554f8p-3, 0x1.55555555505c9p-5, 0x1.1111111127e29p-7, 0x1.6c16c184c8ed5p-10, 0x1.a01a012bfc3bcp-13,
      0x1.a019982f84d82p-16, 0x1.71df1ece5d53bp-19, 0x1.28af61aae85dcp-22, 0x1.ad89f501c11fp-26}},
}};

/* the same, accurate relative to e^r - 1 */
const Poly poly_expm1 = {{
    /* f32, 2^-30.9 */
    {6, {0x1p-1, 0x1.555554p-3, 0x1.5554f8p-5, 0x1.1112bcp-7, 0x1.6d3994p-10, 0x1.9eadf6p-13}},
    /* f64, 2^-58.8 */
    {11,
     {0x1p-1, 0x1.5555555555559p-3, 0x1.555555555555cp-5, 0x1.111111110f375p-7, 0x1.6c16c16c11753p-10, 0x1.a01a01b1517f9p-13,
      0x1.a01a01c788fa7p-16, 0x1.71ddf46fd24ep-19, 0x1.27e48362bdc3ep-22, 0x1.af65fa23d0098p-26, 0x1.20148eea45dc9p-29}},
}};

/* 2^r = 1 + r P(r), |r| <= 1/2 */
const Poly poly_exp2 = {{
    /* f32, 2^-27.2 */
    {6, {0x1.62e432p-1, 0x1.ebfbe6p-3, 0x1.c6ad6ep-5, 0x1.3b2508p-7, 0x1.5fe1a4p-10, 0x1.4862ccp-13}},
    /* f64, 2^-55.2 */
    {11,
     {0x1.62e42fefa39f3p-1, 0x1.ebfbdff82c599p-3, 0x1.c6b08d7048dc4p-5, 0x1.3b2ab6fba1afbp-7, 0x1.5d87fe7bf7caap-10, 0x1.4309130a333cdp-13,
      0x1.ffcbed3be306dp-17, 0x1.62bfd21f502ap-20, 0x1.b5433fefc7ebap-24, 0x1.e60af5f47fbcap-28, 0x1.bdeec1cade1ccp-32}},
}};

/* log(1 + f) = f - f^2/2 + f^3 P(f), sqrt(1/2) <= 1 + f <= sqrt(2) */
const Poly poly_log = {{
    /* f32, 2^-26.8 */
    {8, {0x1.555554p-2, -0x1.000228p-2, 0x1.99a034p-3, -0x1.5470fap-3, 0x1.22d49ap-3, -0x1.0d8fcep-3, 0x1.0576d8p-3, -0x1.388beap-4}},
    /* f64, 2^-59.3 */
    {20, {0x1.555555555556bp-2,  -0x1.ffffffffffe7dp-3, 0x1.9999999994d1ap-3,  -0x1.555555556af0fp-3, 0x1.24924927628bfp-3,
          -0x1.fffffff3d5e25p-4, 0x1.c71c702bba904p-4,  -0x1.99999a94747fbp-4, 0x1.745d5919a7fddp-4,  -0x1.55557872c4e64p-4,
          0x1.3b0d747c034abp-4,  -0x1.2489282a79736p-4, 0x1.116a12c4f83f5p-4,  -0x1.00d14947a5621p-4, 0x1.dc9a4263d367dp-5,
          -0x1.b44b213d45177p-5, 0x1.bb89f891a41ep-5,   -0x1.0117b8b57c341p-4, 0x1.d3319f094b031p-5,  -0x1.8e6e3771e342ap-6}},
}};

/* log2(1 + f) = f + f P(f) */
const Poly poly_log2 = {{
    /* f32, 2^-25.7 */
    {10,
     {0x1.c551dap-2, -0x1.71547p-1, 0x1.ec7096p-2, -0x1.715a76p-2, 0x1.277e36p-2, -0x1.eabc86p-3, 0x1.a305a8p-3, -0x1.874bf6p-3,
      0x1.7d495cp-3, -0x1.c25a78p-4}},
    {0, {0}},
}};

/* log10(1 + f) = f P(f) */
const Poly poly_log10 = {{
    /* f32, 2^-24.7 */
    {10,
     {0x1.bcb7b2p-2, -0x1.bcb7aap-3, 0x1.287a72p-3, -0x1.bcbeeap-4, 0x1.63cf1ep-4, -0x1.2773e8p-4, 0x1.f88d88p-5, -0x1.d72b1p-5,
      0x1.cb1d62p-5, -0x1.0f23c8p-5}},
    {0, {0}},
}};

/* sin r = r + r^3 P(z), z = r^2, |r| <= 1.5833: the rounded sum is never beyond 1 (see sin_half_pi) */
const Poly poly_sin_half_pi = {{
    /* f32, found by search */
    {4, {-0x1.55555p-3, 0x1.110edap-7, -0x1.9f61a4p-13, 0x1.5c7776p-19}},
    {0, {0}},
}};

/* sin r = r + r z P(z), |r| <= pi/4 */
const Poly poly_sin = {{
    /* f32, 2^-27.9 */
    {3, {-0x1.555546p-3, 0x1.110774p-7, -0x1.9951e8p-13}},
    /* f64, 2^-57.0 */
    {6,
     {-0x1.5555555555548p-3, 0x1.111111110f73p-7, -0x1.a01a019be9205p-13, 0x1.71de355529b72p-19, -0x1.ae5e4b826cf2p-26,
      0x1.5d8b4bda17f1dp-33}},
}};

/* cos r = 1 - z/2 + z^2 P(z), |r| <= pi/4 */
const Poly poly_cos = {{
    /* f32, 2^-33.0 */
    {3, {0x1.55554ap-5, -0x1.6c0c28p-10, 0x1.99e80cp-16}},
    /* f64, 2^-63.9 */
    {6,
     {0x1.555555555554bp-5, -0x1.6c16c16c15005p-10, 0x1.a01a019c8c7d5p-16, -0x1.27e4f7ef0d057p-22, 0x1.1ee9d9c5fae6ep-29,
      -0x1.8fa55309e4213p-37}},
}};

/* tan r = r + r z P(z), |r| <= pi/4 */
const Poly poly_tan = {{
    /* f32, 2^-25.7 */
    {6, {0x1.5554dep-2, 0x1.112df8p-3, 0x1.b5825p-5, 0x1.908b42p-6, 0x1.951dcp-9, 0x1.3421b6p-7}},
    /* f64, 2^-56.2 */
    {14,
     {0x1.55555555554eep-2, 0x1.11111111186f7p-3, 0x1.ba1ba1b43ab95p-5, 0x1.664f49b1795ep-6, 0x1.226e115cdad1dp-7, 0x1.d6d95755ad705p-9,
      0x1.7d59ad01cf5e6p-10, 0x1.3808b4267c449p-11, 0x1.d1c9eacce38d6p-13, 0x1.1f80cd64479c3p-13, -0x1.c81ea0c9f8db4p-16,
      0x1.7a48de5b8c19fp-14, -0x1.7bcd287690023p-15, 0x1.5fa486f82aab7p-16}},
}};

/* atan r = r + r z P(z), |r| <= 1 */
const Poly poly_atan = {{
    /* f32, 2^-25.8 */
    {8, {-0x1.5554dcp-2, 0x1.9978ecp-3, -0x1.230a9cp-3, 0x1.b4df3p-4, -0x1.355268p-4, 0x1.61f364p-5, -0x1.0c1ec2p-6, 0x1.7eb682p-9}},
    /* f64, 2^-57.5 */
    {20, {-0x1.5555555555526p-2, 0x1.99999999955b1p-3,  -0x1.249249237f4abp-3, 0x1.c71c717fcc76fp-4,   -0x1.745d11ae42e13p-4,
          0x1.3b1366980fbedp-4,  -0x1.110e51172b6c1p-4, 0x1.e1bba5be5bfaap-5,  -0x1.ae5e6ff329469p-5,  0x1.82daceb9aec2cp-5,
          -0x1.59a3e9444a6c5p-5, 0x1.2c2e3296ec129p-5,  -0x1.e9f98e199bbdcp-6, 0x1.683c333bf2cb4p-6,   -0x1.c78ebc1dc68fcp-7,
          0x1.d7b7b0211ebe8p-8,  -0x1.7a38215373f83p-9, 0x1.b3f8c08bec8dp-11,  -0x1.3f348e5d19c3bp-13, 0x1.bbeada76830d3p-17}},
}};

/* asin r = r + r z P(z), |r| <= 1/2 */
const Poly poly_asin = {{
    /* f32, 2^-27.6 */
    {5, {0x1.5555c8p-3, 0x1.330204p-4, 0x1.747bbap-5, 0x1.8c3e26p-6, 0x1.595c96p-5}},
    /* f64, 2^-59.8 */
    {13,
     {0x1.5555555555577p-3, 0x1.333333332e131p-4, 0x1.6db6db7212692p-5, 0x1.f1c71a94f226fp-6, 0x1.6e8bdee05b1a6p-6, 0x1.1c49f05aae109p-6,
      0x1.ca1f8daa8259bp-7, 0x1.7585879d0e21ap-7, 0x1.613c98c0e3b3p-7, 0x1.e5f4c2f949371p-9, 0x1.639cb232e6c22p-6, -0x1.57fddffc6e1fep-6,
      0x1.0b46e1cf45278p-5}},
}};

/* erf x = x + x P(x^2), |x| <= 0.95 */
const Poly poly_erf_small = {{
    /* f32, 2^-30.0 */
    {7, {0x1.06eba8p-3, -0x1.81274p-2, 0x1.ce2d64p-4, -0x1.b80124p-6, 0x1.544b08p-8, -0x1.a6181p-11, 0x1.4fa924p-14}},
    /* f64, 2^-56.3 */
    {14,
     {0x1.06eba8214db69p-3, -0x1.812746b0379e7p-2, 0x1.ce2f21a042bep-4, -0x1.b82ce31288abep-6, 0x1.565bcd0e68398p-8, -0x1.c02db3ffac779p-11,
      0x1.f9a326df3a15p-14, -0x1.f4d25905ae138p-17, 0x1.b9e683decd417p-20, -0x1.5f6ffbbad54e9p-23, 0x1.fc6a7e7288cb9p-27,
      -0x1.4f2d49d2d84b5p-30, 0x1.83e577e952511p-34, -0x1.36d23917e6dbdp-38}},
}};

/* erfc x = exp(P(x - 1)), 0.94 <= x <= 4 (F64: 5.95) */
const Poly poly_erf_large = {{
    /* f32, 2^-26.4 */
    {8, {-0x1.d97fcp+0, -0x1.51c9bp+1, -0x1.afabcp-1, -0x1.547b18p-5, 0x1.4920a2p-7, -0x1.0757bep-9, 0x1.2de18ap-12, -0x1.65eee4p-16}},
    /* f64, 2^-58.0 */
    {20, {-0x1.d97fbf27aa2a1p+0,  -0x1.51c9b0006c23dp+1, -0x1.afabc11a28f29p-1,  -0x1.5477f09caabcep-5,  0x1.48c9d40bfb1f8p-7,
          -0x1.033f698470cd3p-9,  0x1.f1b4b1a7fdd18p-13, 0x1.b8bfedb7578efp-16,  -0x1.c75efdd022c22p-16, 0x1.417122aeafa39p-17,
          -0x1.0f6aa4728b8edp-19, 0x1.c96d597d3b21fp-24, 0x1.0aa42618cd45cp-23,  -0x1.1e9cbf2099982p-24, 0x1.68646915fabe4p-26,
          -0x1.433362281a192p-28, 0x1.a4789458eba55p-31, -0x1.7b70d3bf4923fp-34, 0x1.a95d12792e0a9p-38,  -0x1.bd7b56dfbf035p-43}},
}};

/* erfc a = e^(-a^2) u P(q), u = 1 / (a + k), q = (a - k) u, up to a = 10.1 (F64: 27.3) */
const Poly poly_erfc = {{
    /* f32, k = 2, 2^-24.1 (before rounding 2^-28.1) */
    {11,
     {0x1.058672p+0, -0x1.5fd386p-1, 0x1.1e2ddap-2, -0x1.2a87f6p-5, -0x1.60598ap-6, 0x1.a86738p-8, 0x1.916cp-9, -0x1.b43d88p-11,
      -0x1.36ac4ep-11, 0x1.89c036p-15, 0x1.236ba6p-14}},
    /* f64, k = 4, 2^-53.9 (before rounding 2^-60.9) */
    {24, {0x1.18932bf08e154p+0,   -0x1.f3fe31ecb49bfp-1,  0x1.8be202d26c707p-1,   -0x1.14eacb1ad033dp-1,  0x1.52cac2371009dp-2,
          -0x1.645fd8a4bc00fp-3,  0x1.38dbd2c8e7d0cp-4,   -0x1.b00c052c3f274p-6,  0x1.908f471e80b93p-8,   -0x1.269b5210cbe35p-12,
          -0x1.dd2841b4690bp-12,  0x1.72cda73e77d55p-13,  -0x1.e7f3d81c2253cp-19, -0x1.3c6ed57c473d6p-16, 0x1.3b1e81d077676p-18,
          0x1.7e53e0250d83bp-20,  -0x1.c7c53ba4be3b2p-21, -0x1.4651e1c37452fp-24, 0x1.12ec604021b6cp-23,  0x1.ee8e04daefa4ep-30,
          -0x1.3f98d3aa847b7p-26, -0x1.cb0bf32487876p-31, 0x1.2163cbc5043f5p-29,  0x1.ca7db26ae62b9p-32}},
}};

/* log(1 + f) = f + f^2 P(f), for f32 functions that compute in f64 */
const Poly poly_log_mid = {{
    {0, {0}},
    /* f64, 2^-38.0 */
    {13,
     {-0x1.fffffffeee109p-2, 0x1.555555652382p-2, -0x1.00000158965ecp-2, 0x1.999988a3aa7edp-3, -0x1.555468ec9c709p-3, 0x1.2494e2b4abcedp-3,
      -0x1.0022a96d80215p-3, 0x1.c6e4207c1a4cdp-4, -0x1.94b4e2e49bc75p-4, 0x1.71e4e8e47b2f2p-4, -0x1.7db1103004494p-4, 0x1.77a552ee538a2p-4,
      -0x1.8c0674cc73363p-5}},
}};

/*
 * With s = f / (2 + f), z = s^2. f32: log2(1 + f) = s (2 / ln 2 + z (2 / (3 ln 2) + z P(z))), error relative to the whole;
 * f64: log(1 + f) = 2 s + s^3 (2/3 + z P(z)), error relative to 2 s.
 */
const Poly poly_pow_log = {{
    /* f32, 2^-36.8 */
    {3, {0x1.27770ep-1, 0x1.a5bb7cp-2, 0x1.59f816p-2}},
    /* f64, 2^-66.6 */
    {9,
     {0x1.999999999999ap-2, 0x1.249249249246fp-2, 0x1.c71c71c7228p-3, 0x1.745d17417976ep-3, 0x1.3b13b313b7d9bp-3, 0x1.111093df3909ep-3,
      0x1.e20b9e0ce08d5p-4, 0x1.aae9cfe5c994ap-4, 0x1.c32ba44069207p-4}},
}};
