/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The address of a short loop decides its cost per iteration, for example for a sensor that is off.
 * A loop that crosses a line of 64 bytes takes one cycle more. A jump that crosses 16 bytes takes a
 * fraction of a cycle more. Each put is compiled eight times, at different offsets from the begin
 * of a line; the best of them is compared. Mirrored by native.rs.
 */
#define PLACES 8
#if defined(__x86_64__)
#define NOTHING(BYTES) ".rept " #BYTES "\n\tnop\n\t.endr"
#else
#define NOTHING(BYTES) ".rept " #BYTES " / 4\n\tnop\n\t.endr"
#endif
#define PLACE(BYTES) __asm__ volatile(".balign 64\n\t" NOTHING(BYTES))
#define PLACED(NAME)                                                                                \
    {                                                                                               \
        NAME##_at_0, NAME##_at_8, NAME##_at_16, NAME##_at_24, NAME##_at_32, NAME##_at_40,           \
            NAME##_at_48, NAME##_at_56                                                              \
    }
#define PLACED_LOOPS(LOOP, NAME)                                                                    \
    LOOP(NAME, 0)                                                                                   \
    LOOP(NAME, 8)                                                                                   \
    LOOP(NAME, 16)                                                                                  \
    LOOP(NAME, 24)                                                                                  \
    LOOP(NAME, 32)                                                                                  \
    LOOP(NAME, 40)                                                                                  \
    LOOP(NAME, 48)                                                                                  \
    LOOP(NAME, 56)
