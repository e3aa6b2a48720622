/* A byte ring in shared memory: one writer, one reader, whole messages in order.
 *
 * Nothing here knows Python. docs/links.md argues the memory order. Positions count bytes
 * since the ring was made and never wrap; each side keeps its own one privately and only
 * publishes it, so what a broken peer writes into shared memory is checked, never followed.
 */
#ifndef SITS_RING_CORE_H
#define SITS_RING_CORE_H

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define RING_LINE 64u
#define RING_CONTROL_BYTES 4096u
#define RING_MIN_CAPACITY 4096u
#define RING_MAX_CAPACITY (1u << 30)

/* The first page of a direction. A line each, so that the sides do not share one. */
typedef struct {
    _Alignas(RING_LINE) _Atomic uint64_t head; /* stored by the writer only */
    _Atomic uint32_t writer_ran_on;            /* processor + 1; a hint, see ring_spin */
    _Alignas(RING_LINE) _Atomic uint64_t tail; /* stored by the reader only */
    _Atomic uint32_t reader_ran_on;
    _Alignas(RING_LINE) _Atomic uint32_t reader_asleep; /* futex words */
    _Alignas(RING_LINE) _Atomic uint32_t writer_asleep;
} ring_control;

/* In front of each piece of a message; pieces start on a line. A message is cut where the
 * memory ends and where the free space ends. */
typedef struct {
    _Atomic uint64_t number; /* its position + 1, so that no fresh memory looks like a record */
    _Atomic uint64_t length; /* bytes of this piece */
    _Atomic uint64_t at;     /* where they belong in the message */
    _Atomic uint64_t total;  /* bytes of the whole message */
} ring_record;

/* One side of one direction, in the memory of its process. */
typedef struct {
    ring_control *control;
    unsigned char *data;
    uint64_t capacity;
    uint64_t position; /* head for the writer, tail for the reader */
    uint64_t spin_ns;
    _Atomic int closed;
    /* The rest is the reader's. */
    uint64_t known_head;
    uint64_t max_message;
    uint64_t expected_at, expected_total; /* of the message that is half here; 0 = none */
} ring_side;

typedef struct {
    const unsigned char *data;
    uint64_t length, at, total;
} ring_piece;

typedef enum { RING_CORRUPT = -1, RING_NO = 0, RING_YES = 1, RING_INTERRUPTED = 2 } ring_answer;

static inline uint64_t ring_least(uint64_t a, uint64_t b) { return a < b ? a : b; }

static inline uint64_t ring_record_bytes(uint64_t length) {
    return (sizeof(ring_record) + length + RING_LINE - 1) & ~(uint64_t)(RING_LINE - 1);
}

static inline uint64_t ring_contiguous(const ring_side *side) {
    return side->capacity - (side->position & (side->capacity - 1));
}

static inline uint64_t ring_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void ring_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Sleeping. The flag that says "asleep" is the futex word itself. The sleeper stores the flag,
 * then looks at the position; the other side stores the position, then looks at the flag; all
 * four are sequentially consistent, so one of them sees what the other did. */

static inline void ring_wake_always(_Atomic uint32_t *asleep) {
    atomic_store_explicit(asleep, 0, memory_order_seq_cst);
    /* Without FUTEX_PRIVATE_FLAG: the word is shared between processes. */
    syscall(SYS_futex, asleep, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static inline void ring_wake(_Atomic uint32_t *asleep) {
    if (atomic_load_explicit(asleep, memory_order_seq_cst) != 0) ring_wake_always(asleep);
}

typedef int (*ring_ready)(ring_side *side, uint64_t wanted);

static inline uint32_t ring_processor(void) { return (uint32_t)sched_getcpu() + 1; }

/* Only while the other side is on another processor: on ours it cannot run until we sleep. */
static inline int ring_spin(ring_side *side, ring_ready ready, uint64_t wanted,
                            const _Atomic uint32_t *other_ran_on) {
    if (atomic_load_explicit(other_ran_on, memory_order_relaxed) == ring_processor()) return 0;
    uint64_t end_ns = ring_now_ns() + side->spin_ns;
    do {
        for (int turn = 0; turn < 32; turn++) {
            if (ready(side, wanted)) return 1;
            ring_pause();
        }
    } while (ring_now_ns() < end_ns);
    return 0;
}

/* Until ready or closed (RING_YES), until `until_ns` (0 = never; RING_NO), or until a signal. */
static inline ring_answer ring_wait(ring_side *side, _Atomic uint32_t *asleep,
                                    const _Atomic uint32_t *other_ran_on, ring_ready ready,
                                    uint64_t wanted, uint64_t until_ns) {
    if (side->spin_ns && ring_spin(side, ready, wanted, other_ran_on)) return RING_YES;
    for (;;) {
        struct timespec left, *timeout = NULL;
        if (until_ns) {
            uint64_t now_ns = ring_now_ns();
            if (now_ns >= until_ns) return RING_NO;
            left.tv_sec = (time_t)((until_ns - now_ns) / 1000000000u);
            left.tv_nsec = (long)((until_ns - now_ns) % 1000000000u);
            timeout = &left;
        }
        atomic_store_explicit(asleep, 1, memory_order_seq_cst);
        if (ready(side, wanted)) {
            atomic_store_explicit(asleep, 0, memory_order_relaxed);
            return RING_YES;
        }
        long slept = syscall(SYS_futex, asleep, FUTEX_WAIT, 1, timeout, NULL, 0);
        if (slept != 0 && errno == EINTR) return RING_INTERRUPTED;
    }
}

/* From any thread of this process: waits end now and later ones do not begin. */
static inline void ring_close(ring_side *side, _Atomic uint32_t *asleep) {
    atomic_store_explicit(&side->closed, 1, memory_order_seq_cst);
    /* Whatever the flag says: the peer may have died between clearing it and waking us. */
    ring_wake_always(asleep);
}

static inline int ring_closed(ring_side *side) {
    return atomic_load_explicit(&side->closed, memory_order_seq_cst);
}

/* Writing. */

static inline ring_answer ring_free(ring_side *writer, uint64_t *bytes) {
    uint64_t tail = atomic_load_explicit(&writer->control->tail, memory_order_seq_cst);
    uint64_t used = writer->position - tail;
    if (used > writer->capacity || used % RING_LINE) return RING_CORRUPT;
    *bytes = writer->capacity - used;
    return RING_YES;
}

/* Space for the rest of a message, the second header included when it is cut at the end. */
static inline uint64_t ring_need(const ring_side *writer, uint64_t rest) {
    uint64_t before_end = ring_contiguous(writer);
    uint64_t whole = ring_record_bytes(rest);
    if (whole <= before_end) return whole;
    return before_end + ring_record_bytes(rest - (before_end - sizeof(ring_record)));
}

/* Write pieces into `space` free bytes (one line at least); how far the message is written. */
static inline uint64_t ring_put(ring_side *writer, const unsigned char *message, uint64_t at,
                                uint64_t total, uint64_t space) {
    do {
        uint64_t here = ring_least(ring_contiguous(writer), space);
        uint64_t length = ring_least(total - at, here - sizeof(ring_record));
        ring_record *record =
            (ring_record *)(writer->data + (writer->position & (writer->capacity - 1)));
        atomic_store_explicit(&record->number, writer->position + 1, memory_order_relaxed);
        atomic_store_explicit(&record->length, length, memory_order_relaxed);
        atomic_store_explicit(&record->at, at, memory_order_relaxed);
        atomic_store_explicit(&record->total, total, memory_order_relaxed);
        memcpy(record + 1, message + at, length);
        writer->position += ring_record_bytes(length);
        space -= ring_record_bytes(length);
        at += length;
    } while (at < total && space >= RING_LINE);
    return at;
}

static inline void ring_commit(ring_side *writer) {
    ring_control *control = writer->control;
    atomic_store_explicit(&control->writer_ran_on, ring_processor(), memory_order_relaxed);
    /* Releases what was written before it: the reader acquires it with `head`. */
    atomic_store_explicit(&control->head, writer->position, memory_order_seq_cst);
    ring_wake(&control->reader_asleep);
}

/* All of the message or nothing of it. */
static inline ring_answer ring_try_write(ring_side *writer, const unsigned char *message,
                                         uint64_t total) {
    uint64_t space = 0;
    if (ring_closed(writer)) return RING_NO;
    if (ring_free(writer, &space) != RING_YES) return RING_CORRUPT;
    if (ring_need(writer, total) > space) return RING_NO;
    ring_put(writer, message, 0, total, space);
    ring_commit(writer);
    return RING_YES;
}

static inline int ring_has_space(ring_side *writer, uint64_t wanted) {
    uint64_t space = 0;
    return ring_closed(writer) || ring_free(writer, &space) != RING_YES || space >= wanted;
}

static inline ring_answer ring_wait_space(ring_side *writer, uint64_t wanted) {
    ring_control *control = writer->control;
    return ring_wait(writer, &control->writer_asleep, &control->reader_ran_on, ring_has_space,
                     wanted, 0);
}

/* Go on at `*at` and wait for space as often as needed. RING_NO = closed. After
 * RING_INTERRUPTED call again with the same `at`. */
static inline ring_answer ring_write(ring_side *writer, const unsigned char *message, uint64_t *at,
                                     uint64_t total) {
    for (;;) {
        uint64_t space = 0;
        if (ring_closed(writer)) return RING_NO;
        if (ring_free(writer, &space) != RING_YES) return RING_CORRUPT;
        /* Pieces of a quarter at least, or a slow reader would be fed line by line. */
        uint64_t wanted = ring_least(ring_need(writer, total - *at), writer->capacity / 4);
        if (space >= wanted) {
            *at = ring_put(writer, message, *at, total, space);
            ring_commit(writer);
            if (*at == total) return RING_YES;
        } else if (ring_wait_space(writer, wanted) == RING_INTERRUPTED) {
            return RING_INTERRUPTED;
        }
    }
}

/* Reading. */

static inline int ring_has_data(ring_side *reader, uint64_t wanted) {
    (void)wanted;
    uint64_t head = atomic_load_explicit(&reader->control->head, memory_order_seq_cst);
    return head != reader->position || ring_closed(reader);
}

/* Learn how far the writer is. RING_CORRUPT when that cannot be. */
static inline ring_answer ring_look(ring_side *reader) {
    uint64_t head = atomic_load_explicit(&reader->control->head, memory_order_acquire);
    uint64_t used = head - reader->position;
    if (used > reader->capacity || used % RING_LINE) return RING_CORRUPT;
    reader->known_head = head;
    return used != 0;
}

/* The next piece before the known head. Its numbers are read once, then checked, then used. */
static inline ring_answer ring_next(ring_side *reader, ring_piece *piece) {
    uint64_t before_head = reader->known_head - reader->position;
    if (before_head == 0) return RING_NO;
    ring_record *record =
        (ring_record *)(reader->data + (reader->position & (reader->capacity - 1)));
    uint64_t number = atomic_load_explicit(&record->number, memory_order_relaxed);
    piece->length = atomic_load_explicit(&record->length, memory_order_relaxed);
    piece->at = atomic_load_explicit(&record->at, memory_order_relaxed);
    piece->total = atomic_load_explicit(&record->total, memory_order_relaxed);
    piece->data = (const unsigned char *)(record + 1);
    uint64_t here = ring_least(before_head, ring_contiguous(reader));
    if (number != reader->position + 1 || piece->at != reader->expected_at) return RING_CORRUPT;
    if (piece->length > here - sizeof(ring_record)) return RING_CORRUPT;
    if (piece->total > reader->max_message || piece->at > piece->total) return RING_CORRUPT;
    if (piece->length > piece->total - piece->at) return RING_CORRUPT;
    if (piece->length == 0 && piece->total != 0) return RING_CORRUPT;
    if (piece->at != 0 && piece->total != reader->expected_total) return RING_CORRUPT;
    return RING_YES;
}

/* Give the space of a piece back, once its bytes have been copied out. */
static inline void ring_consume(ring_side *reader, const ring_piece *piece) {
    uint64_t end = piece->at + piece->length;
    reader->expected_at = end == piece->total ? 0 : end;
    reader->expected_total = piece->total;
    reader->position += ring_record_bytes(piece->length);
    atomic_store_explicit(&reader->control->tail, reader->position, memory_order_release);
}

/* After a run of ring_consume: the writer may be waiting for the space. */
static inline void ring_consumed(ring_side *reader) {
    ring_control *control = reader->control;
    atomic_store_explicit(&control->reader_ran_on, ring_processor(), memory_order_relaxed);
    atomic_store_explicit(&control->tail, reader->position, memory_order_seq_cst);
    ring_wake(&control->writer_asleep);
}

static inline ring_answer ring_wait_data(ring_side *reader, uint64_t until_ns) {
    ring_control *control = reader->control;
    return ring_wait(reader, &control->reader_asleep, &control->writer_ran_on, ring_has_data, 0,
                     until_ns);
}

#endif
