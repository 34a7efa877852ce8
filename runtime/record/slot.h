/*
 * Where an operand is found that is not there yet, in what is recorded once and used again (bodies.h, runtime/gradient/custom.h): the two highest
 * bits say in which list, the others at which place.
 */
#ifndef RUNTIME_SLOT_H
#define RUNTIME_SLOT_H

#include <stddef.h>
#include <stdint.h>

typedef uint32_t Slot;
enum { SLOT_PLACE = 0, SLOT_CAPTURED = 1, SLOT_MADE = 2, SLOT_SHIFT = 30 };
#define SLOT_NONE UINT32_MAX
static inline Slot slot_of(unsigned list, size_t i) { return (Slot)list << SLOT_SHIFT | (Slot)i; }
static inline unsigned slot_list(Slot slot) { return slot >> SLOT_SHIFT; }
static inline uint32_t slot_index(Slot slot) { return slot & (((Slot)1 << SLOT_SHIFT) - 1); }

#endif
