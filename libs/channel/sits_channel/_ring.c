/* Python's view of ring_core.h, in the limited API: one file serves CPython 3.11 and newer.
 *
 * Copying keeps the GIL, because it takes less than getting it back would; every wait gives
 * it up. Each object belongs to one thread, but for `close`, which any thread may call.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "ring_core.h"

typedef struct {
    PyObject_HEAD
    Py_buffer memory;
    ring_side side;
    char *half; /* reader: bytes of half_message */
    PyObject *half_message;
} RingObject;

static int open_side(RingObject *ring, PyObject *memory, Py_ssize_t offset, Py_ssize_t capacity) {
    if (PyObject_GetBuffer(memory, &ring->memory, PyBUF_WRITABLE) != 0) return -1;
    if (capacity < (Py_ssize_t)RING_MIN_CAPACITY || capacity > (Py_ssize_t)RING_MAX_CAPACITY ||
        (capacity & (capacity - 1))) {
        PyErr_Format(PyExc_ValueError, "capacity is a power of two from %u to %u, got %zd",
                     RING_MIN_CAPACITY, RING_MAX_CAPACITY, capacity);
        return -1;
    }
    if (offset < 0 || offset > ring->memory.len - (Py_ssize_t)RING_CONTROL_BYTES - capacity) {
        PyErr_Format(PyExc_ValueError, "no room for a ring of %zd bytes at %zd of %zd bytes",
                     capacity, offset, ring->memory.len);
        return -1;
    }
    unsigned char *start = (unsigned char *)ring->memory.buf + offset;
    if ((uintptr_t)start % RING_LINE) {
        PyErr_Format(PyExc_ValueError, "a ring starts on a line of %u bytes", RING_LINE);
        return -1;
    }
    ring->side.control = (ring_control *)start;
    ring->side.data = start + RING_CONTROL_BYTES;
    ring->side.capacity = (uint64_t)capacity;
    return 0;
}

static PyObject *make(PyTypeObject *type, PyObject *memory, Py_ssize_t offset, Py_ssize_t capacity,
                      unsigned long long max_message, unsigned long spin_ns) {
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    RingObject *ring = (RingObject *)allocate(type, 0); /* zeroed */
    if (ring == NULL) return NULL;
    if (open_side(ring, memory, offset, capacity) != 0) {
        Py_DECREF(ring);
        return NULL;
    }
    ring->side.max_message = max_message;
    ring->side.spin_ns = spin_ns;
    return (PyObject *)ring;
}

static void ring_dealloc(PyObject *self) {
    RingObject *ring = (RingObject *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (ring->memory.obj != NULL) PyBuffer_Release(&ring->memory);
    Py_XDECREF(ring->half_message);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *get_closed(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(ring_closed(&((RingObject *)self)->side));
}

static PyGetSetDef getters[] = {
    {"closed", get_closed, NULL, "Whether `close` was called on this side.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* Writer */

static PyObject *writer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"memory", "offset", "capacity", "spin_ns", NULL};
    PyObject *memory;
    Py_ssize_t offset, capacity;
    unsigned long spin_ns = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Onn|k", names, &memory, &offset, &capacity,
                                     &spin_ns))
        return NULL;
    PyObject *made = make(type, memory, offset, capacity, 0, spin_ns);
    if (made == NULL) return NULL;
    ring_side *side = &((RingObject *)made)->side;
    side->position = atomic_load_explicit(&side->control->head, memory_order_acquire);
    return made;
}

static PyObject *corrupt_tail(ring_side *side) {
    return PyErr_Format(PyExc_ValueError, "the reader cannot be at %llu: %llu bytes are written",
                        (unsigned long long)atomic_load(&side->control->tail),
                        (unsigned long long)side->position);
}

static PyObject *writer_try_write(PyObject *self, PyObject *message) {
    char *bytes;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(message, &bytes, &length) != 0) return NULL;
    ring_side *side = &((RingObject *)self)->side;
    /* A broken ring takes nothing; `write` says why. */
    return PyBool_FromLong(
        ring_try_write(side, (unsigned char *)bytes, (uint64_t)length) == RING_YES);
}

static PyObject *writer_write(PyObject *self, PyObject *message) {
    char *bytes;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(message, &bytes, &length) != 0) return NULL;
    ring_side *side = &((RingObject *)self)->side;
    uint64_t at = 0;
    ring_answer answer;
    do {
        Py_BEGIN_ALLOW_THREADS
        answer = ring_write(side, (unsigned char *)bytes, &at, (uint64_t)length);
        Py_END_ALLOW_THREADS
        if (answer == RING_INTERRUPTED && PyErr_CheckSignals() != 0) return NULL;
    } while (answer == RING_INTERRUPTED);
    return answer == RING_CORRUPT ? corrupt_tail(side) : PyBool_FromLong(answer == RING_YES);
}

static PyObject *writer_close(PyObject *self, PyObject *unused) {
    (void)unused;
    ring_side *side = &((RingObject *)self)->side;
    ring_close(side, &side->control->writer_asleep);
    Py_RETURN_NONE;
}

static PyMethodDef writer_methods[] = {
    {"try_write", writer_try_write, METH_O, "All of the message or, when it does not fit, nothing."},
    {"write", writer_write, METH_O, "Waits for space. False when closed. Raises ValueError."},
    {"close", writer_close, METH_NOARGS, "Ends a `write` that waits; nothing is taken any more."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot writer_slots[] = {
    {Py_tp_new, writer_new},
    {Py_tp_dealloc, ring_dealloc},
    {Py_tp_methods, writer_methods},
    {Py_tp_getset, getters},
    {Py_tp_doc, "The writing side of one direction."},
    {0, NULL},
};

static PyType_Spec writer_spec = {
    "sits_channel._ring.Writer", sizeof(RingObject), 0, Py_TPFLAGS_DEFAULT, writer_slots,
};

/* Reader */

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"memory", "offset", "capacity", "max_message_bytes", "spin_ns", NULL};
    PyObject *memory;
    Py_ssize_t offset, capacity;
    unsigned long long max_message;
    unsigned long spin_ns = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OnnK|k", names, &memory, &offset, &capacity,
                                     &max_message, &spin_ns))
        return NULL;
    PyObject *made = make(type, memory, offset, capacity, max_message, spin_ns);
    if (made == NULL) return NULL;
    ring_side *side = &((RingObject *)made)->side;
    side->position = atomic_load_explicit(&side->control->tail, memory_order_acquire);
    side->known_head = side->position;
    return made;
}

/* Copy a piece to its place; append the message when that was its last. */
static int take(RingObject *ring, const ring_piece *piece, PyObject *messages) {
    if (piece->at == 0) {
        ring->half_message = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)piece->total);
        if (ring->half_message == NULL) return -1;
        ring->half = PyBytes_AsString(ring->half_message);
    }
    memcpy(ring->half + piece->at, piece->data, piece->length);
    ring_consume(&ring->side, piece);
    if (piece->at + piece->length < piece->total) return 0;
    PyObject *message = ring->half_message;
    ring->half_message = NULL;
    int failed = PyList_Append(messages, message);
    Py_DECREF(message);
    return failed;
}

static int corrupt_record(const ring_side *side, const ring_piece *piece) {
    PyErr_Format(PyExc_ValueError,
                 "broken record at %llu: bytes %llu to +%llu of a message of %llu, limit %llu",
                 (unsigned long long)side->position, (unsigned long long)piece->at,
                 (unsigned long long)piece->length, (unsigned long long)piece->total,
                 (unsigned long long)side->max_message);
    return -1;
}

/* All messages that are there now. */
static int drain(RingObject *ring, PyObject *messages) {
    ring_side *side = &ring->side;
    ring_answer answer = ring_look(side);
    if (answer == RING_CORRUPT) {
        PyErr_Format(PyExc_ValueError, "the writer cannot be at %llu: %llu bytes are read",
                     (unsigned long long)atomic_load(&side->control->head),
                     (unsigned long long)side->position);
        return -1;
    }
    if (answer == RING_NO) return 0;
    ring_piece piece;
    while ((answer = ring_next(side, &piece)) == RING_YES) {
        if (take(ring, &piece, messages) != 0) return -1;
    }
    if (answer == RING_CORRUPT) return corrupt_record(side, &piece);
    ring_consumed(side);
    return 0;
}

static int wait_data(ring_side *side, uint64_t until_ns, ring_answer *answer) {
    Py_BEGIN_ALLOW_THREADS
    *answer = ring_wait_data(side, until_ns);
    Py_END_ALLOW_THREADS
    return *answer == RING_INTERRUPTED ? PyErr_CheckSignals() : 0;
}

static PyObject *reader_read(PyObject *self, PyObject *args) {
    double timeout_s = -1;
    if (!PyArg_ParseTuple(args, "|d", &timeout_s)) return NULL;
    RingObject *ring = (RingObject *)self;
    uint64_t until_ns = timeout_s < 0 ? 0 : ring_now_ns() + (uint64_t)(timeout_s * 1e9);
    PyObject *messages = PyList_New(0);
    if (messages == NULL) return NULL;
    for (ring_answer answer = RING_YES;;) {
        /* Asked first: what came before the end is still read. */
        int closed = ring_closed(&ring->side);
        if (drain(ring, messages) != 0) break;
        if (PyList_Size(messages) || closed || answer == RING_NO) return messages;
        if (wait_data(&ring->side, until_ns, &answer) != 0) break;
    }
    Py_DECREF(messages);
    return NULL;
}

static PyObject *reader_close(PyObject *self, PyObject *unused) {
    (void)unused;
    ring_side *side = &((RingObject *)self)->side;
    ring_close(side, &side->control->reader_asleep);
    Py_RETURN_NONE;
}

static PyMethodDef reader_methods[] = {
    {"read", reader_read, METH_VARARGS,
     "All messages there are; waits for the first. [] = closed and empty, or the time is up."},
    {"close", reader_close, METH_NOARGS, "`read` waits no more; what is there can still be read."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_new, reader_new},
    {Py_tp_dealloc, ring_dealloc},
    {Py_tp_methods, reader_methods},
    {Py_tp_getset, getters},
    {Py_tp_doc, "The reading side of one direction."},
    {0, NULL},
};

static PyType_Spec reader_spec = {
    "sits_channel._ring.Reader", sizeof(RingObject), 0, Py_TPFLAGS_DEFAULT, reader_slots,
};

static int add_type(PyObject *module, PyType_Spec *spec) {
    PyObject *type = PyType_FromSpec(spec);
    if (type == NULL) return -1;
    int failed = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return failed;
}

static int execute(PyObject *module) {
    return add_type(module, &writer_spec) || add_type(module, &reader_spec) ? -1 : 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_ring", "Rings in shared memory.", 0, NULL, module_slots,
    NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__ring(void) { return PyModuleDef_Init(&module); }
