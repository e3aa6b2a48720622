/* Stress of ring_core.h with threads, for a build with -fsanitize=thread; see ring_tsan.py.
 *
 * usage: ring_stress ROUNDS SEED. Prints how many messages were read; exits 1 when one was
 * torn, lost or doubled. Every third round a third thread closes both sides meanwhile.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "../libs/channel/sits_channel/ring_core.h"

enum { CAPACITY = 4096, MESSAGES = 400, LONGEST = 3 * CAPACITY };

typedef struct {
    ring_side writer, reader;
    uint64_t seed;
    int closes;
    uint64_t sent, read, wrong;
} stress;

static uint64_t mix(uint64_t x) { /* splitmix64 */
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The message of a number: its length and its bytes follow from it. */
static uint64_t compose(uint64_t seed, uint64_t number, unsigned char *bytes) {
    uint64_t noise = mix(seed ^ number);
    uint64_t longest = noise % 16 == 0 ? LONGEST : noise % 4 == 0 ? 64 : 900;
    uint64_t length = mix(noise) % (longest + 1);
    memset(bytes, (int)(noise >> 8), length);
    return length;
}

static void *write_all(void *argument) {
    stress *s = argument;
    unsigned char *message = malloc(LONGEST);
    for (uint64_t number = 0; number < MESSAGES; number++) {
        uint64_t length = compose(s->seed, number, message), at = 0;
        ring_answer answer = ring_try_write(&s->writer, message, length);
        while (answer != RING_YES) {
            answer = ring_write(&s->writer, message, &at, length);
            if (answer == RING_NO) goto closed;
            if (answer == RING_CORRUPT) {
                s->wrong++;
                goto closed;
            }
        }
        s->sent++;
    }
closed:
    free(message);
    return NULL;
}

/* Copy what is there; 0 when the ring is broken. */
static int drain(stress *s, unsigned char *got, unsigned char *expected) {
    ring_piece piece;
    if (ring_look(&s->reader) == RING_CORRUPT) return 0;
    ring_answer answer;
    while ((answer = ring_next(&s->reader, &piece)) == RING_YES) {
        memcpy(got + piece.at, piece.data, piece.length);
        ring_consume(&s->reader, &piece);
        if (piece.at + piece.length < piece.total) continue;
        uint64_t length = compose(s->seed, s->read++, expected);
        s->wrong += length != piece.total || memcmp(got, expected, length) != 0;
    }
    ring_consumed(&s->reader);
    return answer != RING_CORRUPT;
}

static void *read_all(void *argument) {
    stress *s = argument;
    unsigned char *got = malloc(LONGEST), *expected = malloc(LONGEST);
    for (;;) {
        int closed = ring_closed(&s->reader);
        if (!drain(s, got, expected)) s->wrong++;
        if (closed || s->wrong || s->read == MESSAGES) break;
        ring_wait_data(&s->reader, 0);
    }
    free(got);
    free(expected);
    return NULL;
}

static void *close_both(void *argument) {
    stress *s = argument;
    struct timespec moment = {0, (long)(mix(s->seed) % 1500000)};
    nanosleep(&moment, NULL);
    ring_close(&s->writer, &s->writer.control->writer_asleep);
    ring_close(&s->reader, &s->reader.control->reader_asleep);
    return NULL;
}

static void play(stress *s) {
    pthread_t threads[3];
    void *(*work[])(void *) = {write_all, read_all, close_both};
    int count = s->closes ? 3 : 2;
    for (int i = 0; i < count; i++) pthread_create(&threads[i], NULL, work[i], s);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    s->wrong += s->read > s->sent + 1 || (!s->closes && s->read != MESSAGES);
}

int main(int argc, char **argv) {
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 200;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, read = 0, wrong = 0;
    for (uint64_t round = 0; round < rounds && !wrong; round++) {
        unsigned char *memory = aligned_alloc(4096, RING_CONTROL_BYTES + CAPACITY);
        memset(memory, 0, RING_CONTROL_BYTES + CAPACITY);
        ring_side side = {.control = (ring_control *)memory,
                          .data = memory + RING_CONTROL_BYTES,
                          .capacity = CAPACITY,
                          .max_message = LONGEST,
                          .spin_ns = round % 2 ? 2000 : 0};
        stress s = {.writer = side, .reader = side, .seed = mix(seed + round),
                    .closes = round % 3 == 2};
        play(&s);
        read += s.read;
        wrong += s.wrong;
        free(memory);
    }
    printf("%llu %llu\n", (unsigned long long)read, (unsigned long long)wrong);
    return wrong != 0;
}
