/*
 * Which sanitizer this is built with: gcc says it by a macro, clang by __has_feature.
 */
#ifndef IR_BASE_SANITIZER_H
#define IR_BASE_SANITIZER_H

#ifdef __has_feature
#define SANITIZER_FEATURE(name) __has_feature(name)
#else
#define SANITIZER_FEATURE(name) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || SANITIZER_FEATURE(address_sanitizer)
#define WITH_ASAN 1
#else
#define WITH_ASAN 0
#endif

#if defined(__SANITIZE_THREAD__) || SANITIZER_FEATURE(thread_sanitizer)
#define WITH_TSAN 1
#else
#define WITH_TSAN 0
#endif

#endif
