/* The phase switch of switch.py in C: the same slots, the same answers, a tenth of the cost.
 *
 * Optional: where this module cannot be built or loaded, switch.py's own class does the work. Built against the
 * limited API, so that one file serves every Python from 3.11 on, also in another environment than ours.
 * The constants come from catalog.py when the module is set up (configure), so they are written down once.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <structmember.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define MOST_SLOTS 64
#define PASS (-9)

static struct {
    int slots, recorded, first_user, first_wait, after_validation, pending_eval, pending_fetch;
    int input, forward, backward, sync, optimizer, validation, wait_start, wait_forward, wait_other;
    long long short_gap_ns;
    int gap_weight, watch_from, watch_most;
    unsigned char is_wait[MOST_SLOTS];
    unsigned char after[MOST_SLOTS];
} cfg;

typedef struct {
    PyObject_HEAD
    long long thread, current, since, begin, switches, cpu_watch, cpu_since, blind;
    long long fetches, backwards, samples, tokens, gc_ns, gc_wait_ns; /* of the running step */
    long long step, sequence, rss, allocated, reserved, flags;        /* of the rows */
    long long quick, lead, due; /* steps that this optimizer ends before `due` need nobody's help */
    Py_buffer rows;
    int has_rows;
    Py_ssize_t row_at, row_end, row_size;
    int64_t totals[MOST_SLOTS];
    PyObject *mark;         /* None or callable(slot): the device clock */
    PyObject *clock;        /* for Python code; read here only when tests replace it */
    PyObject *cpu_clock;
    int own_clock;
    Py_buffer live;
    int has_live;
    Py_ssize_t live_at;
} Switch;

static int64_t read_ns(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t call_ns(PyObject *clock) {
    PyObject *value = PyObject_CallNoArgs(clock);
    if (value == NULL) return -1;
    int64_t ns = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return ns;
}

static inline int64_t now_ns(Switch *s) {
    return s->own_clock ? call_ns(s->clock) : read_ns(CLOCK_MONOTONIC);
}

static inline int64_t cpu_ns(Switch *s) {
    return s->own_clock ? call_ns(s->cpu_clock) : read_ns(CLOCK_THREAD_CPUTIME_ID);
}

static inline int at(long long slot) { return (int)(slot < 0 ? slot + cfg.slots : slot); }

static inline int foreign(Switch *s) {
    return (long long)PyThread_get_thread_ident() != s->thread;
}

static inline void show(Switch *s) {
    if (s->has_live) ((unsigned char *)s->live.buf)[s->live_at] = (unsigned char)s->current;
}

static int tell(Switch *s, long long ended) {
    if (s->mark == Py_None) return 0;
    PyObject *slot = PyLong_FromLongLong(ended);
    if (slot == NULL) return -1;
    PyObject *done = PyObject_CallFunctionObjArgs(s->mark, slot, NULL);
    Py_DECREF(slot);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static PyObject *start(Switch *s, int64_t now, long long slot, long long charged) {
    long long outer = s->current;
    s->since = now;
    s->current = slot;
    s->switches += 1;
    if (slot == cfg.backward) s->backwards += 1;
    show(s);
    if (tell(s, charged) < 0) return NULL;
    return PyLong_FromLongLong(outer);
}

static PyObject *inside(Switch *s, long long slot) {
    int64_t now = now_ns(s);
    s->totals[at(s->current)] += now - s->since;
    return start(s, now, slot, s->current);
}

static PyObject *passing(void) { return PyLong_FromLong(PASS); }

static int slot_of(PyObject *arg, long long *slot) {
    *slot = PyLong_AsLongLong(arg);
    if (*slot == -1 && PyErr_Occurred()) return -1;
    if (*slot < -2 || *slot >= cfg.slots) {
        PyErr_SetString(PyExc_ValueError, "no such slot");
        return -1;
    }
    return 0;
}

static PyObject *Switch_enter_inside(Switch *s, PyObject *arg) {
    long long slot;
    return slot_of(arg, &slot) < 0 ? NULL : inside(s, slot);
}

static PyObject *Switch_enter(Switch *s, PyObject *arg) {
    long long slot;
    if (slot_of(arg, &slot) < 0) return NULL;
    if (s->current < cfg.first_user || foreign(s)) return passing();
    return inside(s, slot);
}

static PyObject *compute(Switch *s, long long slot) {
    long long outer = s->current;
    if (outer < cfg.first_user || foreign(s)) return passing();
    if (outer != cfg.wait_forward && !(slot == cfg.backward && cfg.is_wait[at(outer)]))
        return inside(s, slot);
    int64_t now = now_ns(s), gap = now - s->since, loss = 0;
    if (gap <= cfg.short_gap_ns) {
        loss = gap;
        if (s->cpu_watch) s->cpu_watch -= 1;
    } else {
        if (s->cpu_since) {
            loss = cpu_ns(s) - s->cpu_since;
            if (loss > gap) loss = gap;
        }
        s->cpu_watch += cfg.gap_weight;
        if (s->cpu_watch > cfg.watch_most) s->cpu_watch = cfg.watch_most;
        s->blind = outer != cfg.wait_forward;
    }
    s->cpu_since = 0;
    s->totals[cfg.forward] += loss;
    s->totals[at(outer)] += gap - loss;
    return start(s, now, slot, 2 * loss >= gap ? cfg.forward : outer);
}

static PyObject *Switch_enter_compute(Switch *s, PyObject *arg) {
    long long slot;
    return slot_of(arg, &slot) < 0 ? NULL : compute(s, slot);
}

static PyObject *Switch_enter_optimizer(Switch *s, PyObject *unused) {
    if ((s->current == cfg.backward || s->current == cfg.sync) && !foreign(s)) return inside(s, cfg.optimizer);
    return compute(s, cfg.optimizer);
}

static PyObject *Switch_enter_validation(Switch *s, PyObject *unused) {
    if (s->current < cfg.first_user || foreign(s)) return passing();
    if (s->current != cfg.after_validation) return inside(s, cfg.validation);
    s->current = cfg.validation;
    PyObject *outer = inside(s, cfg.validation);
    if (outer == NULL) return NULL;
    Py_DECREF(outer);
    return PyLong_FromLong(cfg.after_validation);
}

static PyObject *return_to(Switch *s, long long outer) {
    long long slot = s->current;
    int64_t now = now_ns(s);
    s->totals[at(slot)] += now - s->since;
    s->since = now;
    if (cfg.is_wait[at(outer)] && s->cpu_watch >= cfg.watch_from && (slot == cfg.forward || s->blind))
        s->cpu_since = cpu_ns(s);
    s->current = outer;
    show(s);
    if (tell(s, slot) < 0) return NULL;
    return PyLong_FromLongLong(now);
}

static PyObject *Switch_return_to(Switch *s, PyObject *arg) {
    long long outer;
    return slot_of(arg, &outer) < 0 ? NULL : return_to(s, outer);
}

static PyObject *Switch_leave(Switch *s, PyObject *arg) {
    long long outer;
    if (slot_of(arg, &outer) < 0) return NULL;
    int stays = s->current == cfg.optimizer || !cfg.is_wait[at(outer)];
    return return_to(s, stays ? outer : cfg.after[at(s->current)]);
}

/* A local gradient is ready: up to here it was work, what follows the last one is waiting. Any thread may say so,
 * because the training thread is inside the backward call and the caller holds the interpreter's lock. */
static PyObject *Switch_gradients_ready(Switch *s, PyObject *unused) {
    if (s->current != cfg.backward && s->current != cfg.sync) Py_RETURN_NONE;
    int64_t now = now_ns(s);
    s->totals[cfg.backward] += now - s->since;
    s->since = now;
    s->current = cfg.sync;
    show(s);
    if (tell(s, cfg.backward) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *Switch_charged(Switch *s, PyObject *arg) {
    long long slot;
    return slot_of(arg, &slot) < 0 ? NULL : PyLong_FromLongLong(s->totals[at(slot)]);
}

static void move(Switch *s, int source, int target) {
    s->totals[target] += s->totals[source];
    s->totals[source] = 0;
}

static PyObject *Switch_move(Switch *s, PyObject *args) {
    long long source, target;
    if (!PyArg_ParseTuple(args, "LL", &source, &target)) return NULL;
    move(s, at(source), at(target));
    Py_RETURN_NONE;
}

static PyObject *Switch_flush(Switch *s, PyObject *arg) {
    int64_t now = PyLong_AsLongLong(arg);
    if (now == -1 && PyErr_Occurred()) return NULL;
    s->totals[at(s->current)] += now - s->since;
    s->since = now;
    Py_RETURN_NONE;
}

static void clear_counts(Switch *s) {
    s->fetches = s->backwards = s->samples = s->tokens = s->gc_ns = s->gc_wait_ns = 0;
}

static PyObject *Switch_forget_counts(Switch *s, PyObject *unused) {
    clear_counts(s);
    Py_RETURN_NONE;
}

static PyObject *Switch_fetched(Switch *s, PyObject *args) {
    long long samples, tokens;
    if (!PyArg_ParseTuple(args, "LL", &samples, &tokens)) return NULL;
    s->fetches += 1;
    s->samples += samples;
    s->tokens += tokens;
    Py_RETURN_NONE;
}

static void restart(Switch *s, int64_t now) {
    memset(s->totals, 0, sizeof s->totals);
    clear_counts(s);
    s->begin = s->since = now;
    s->switches = 0;
    if (cfg.is_wait[at(s->current)]) s->current = cfg.wait_start;
}

static PyObject *Switch_restart(Switch *s, PyObject *arg) {
    int64_t now = PyLong_AsLongLong(arg);
    if (now == -1 && PyErr_Occurred()) return NULL;
    restart(s, now);
    Py_RETURN_NONE;
}

/* rows_into(buffer, offset, end, row_size, sequence): where the rows go from now on */
static PyObject *Switch_rows_into(Switch *s, PyObject *args) {
    PyObject *target;
    Py_ssize_t offset, end, size;
    long long sequence;
    if (!PyArg_ParseTuple(args, "OnnnL", &target, &offset, &end, &size, &sequence)) return NULL;
    Py_buffer rows;
    if (PyObject_GetBuffer(target, &rows, PyBUF_WRITABLE) < 0) return NULL;
    Py_ssize_t least = (3 + cfg.recorded + 5) * 8 + 6 * 4 + 8;
    if (offset < 0 || size < least || end > rows.len || (end - offset) % size) {
        PyBuffer_Release(&rows);
        PyErr_SetString(PyExc_ValueError, "the rows do not fit");
        return NULL;
    }
    if (s->has_rows) PyBuffer_Release(&s->rows);
    s->rows = rows;
    s->has_rows = 1;
    s->row_at = offset;
    s->row_end = end;
    s->row_size = size;
    s->sequence = sequence;
    Py_RETURN_NONE;
}

/* Write the row of the step that ends at `now`, its sequence number last; begin the next step. */
static void write_row(Switch *s, int64_t now, long long flags) {
    s->totals[at(s->current)] += now - s->since;
    s->since = now;
    move(s, at(cfg.pending_fetch), cfg.input);
    move(s, at(cfg.pending_eval), cfg.validation);
    move(s, cfg.after_validation, cfg.wait_other);
    int64_t words[MOST_SLOTS + 16];
    int n = 0, i;
    s->step += 1;
    s->sequence += 1;
    words[n++] = s->step;
    words[n++] = s->begin;
    words[n++] = now;
    for (i = 0; i < cfg.recorded; i++) words[n++] = s->totals[i];
    words[n++] = s->gc_ns;
    words[n++] = s->gc_wait_ns;
    words[n++] = s->rss;
    words[n++] = s->allocated;
    words[n++] = s->reserved;
    uint32_t halves[6] = {(uint32_t)s->samples, (uint32_t)s->tokens, (uint32_t)flags,
                          (uint32_t)(s->fetches ? s->fetches : s->backwards), (uint32_t)s->switches, 0};
    char *to = (char *)s->rows.buf + s->row_at;
    memcpy(to, words, (size_t)n * 8);
    memcpy(to + n * 8, halves, sizeof halves);
    __atomic_store_n((int64_t *)(to + s->row_size - 8), (int64_t)s->sequence, __ATOMIC_RELEASE);
    s->row_at += s->row_size;
    restart(s, now);
}

/* publish(now, more_flags): end the step */
static PyObject *Switch_publish(Switch *s, PyObject *args) {
    long long now, more;
    if (!PyArg_ParseTuple(args, "LL", &now, &more)) return NULL;
    if (!s->has_rows || s->row_at >= s->row_end) {
        PyErr_SetString(PyExc_ValueError, "no room for a row");
        return NULL;
    }
    write_row(s, now, s->flags | more);
    Py_RETURN_NONE;
}

/* leave_step(outer, optimizer) -> 0, or the time when somebody else must end the step */
static PyObject *Switch_leave_step(Switch *s, PyObject *args) {
    PyObject *outer, *optimizer;
    if (!PyArg_ParseTuple(args, "OO", &outer, &optimizer)) return NULL;
    PyObject *now = Switch_leave(s, outer);
    if (now == NULL || !s->quick || (long long)(intptr_t)optimizer != s->lead || s->since >= s->due ||
        s->row_at >= s->row_end || !cfg.is_wait[at(s->current)])
        return now;
    Py_DECREF(now);
    write_row(s, s->since, s->flags);
    return PyLong_FromLong(0);
}

static PyObject *Switch_show_in(Switch *s, PyObject *args) {
    PyObject *buffer;
    Py_ssize_t offset;
    if (!PyArg_ParseTuple(args, "On", &buffer, &offset)) return NULL;
    if (s->has_live) {
        PyBuffer_Release(&s->live);
        s->has_live = 0;
    }
    if (buffer != Py_None) {
        if (PyObject_GetBuffer(buffer, &s->live, PyBUF_WRITABLE) < 0) return NULL;
        if (offset < 0 || offset >= s->live.len) {
            PyBuffer_Release(&s->live);
            PyErr_SetString(PyExc_ValueError, "offset outside the buffer");
            return NULL;
        }
        s->live_at = offset;
        s->has_live = 1;
    }
    Py_RETURN_NONE;
}

static int Switch_init(Switch *s, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"clock", "cpu_clock", NULL};
    PyObject *clock = NULL, *cpu_clock = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO", names, &clock, &cpu_clock)) return -1;
    if (cfg.slots == 0) {
        PyErr_SetString(PyExc_RuntimeError, "configure() first");
        return -1;
    }
    PyObject *time = PyImport_ImportModule("time");
    if (time == NULL) return -1;
    s->own_clock = clock != NULL;
    PyObject *first = clock ? Py_NewRef(clock) : PyObject_GetAttrString(time, "perf_counter_ns");
    PyObject *second = cpu_clock ? Py_NewRef(cpu_clock) : PyObject_GetAttrString(time, "thread_time_ns");
    Py_DECREF(time);
    if (first == NULL || second == NULL) {
        Py_XDECREF(first);
        Py_XDECREF(second);
        return -1;
    }
    PyObject *old = s->clock, *old_cpu = s->cpu_clock, *old_mark = s->mark;
    s->clock = first;
    s->cpu_clock = second;
    s->mark = Py_NewRef(Py_None);
    Py_XDECREF(old);
    Py_XDECREF(old_cpu);
    Py_XDECREF(old_mark);
    if (s->has_live) PyBuffer_Release(&s->live);
    s->has_live = 0;
    s->thread = -1;
    s->current = cfg.wait_start;
    memset(s->totals, 0, sizeof s->totals);
    clear_counts(s);
    s->switches = s->cpu_watch = s->cpu_since = s->blind = 0;
    if (s->has_rows) PyBuffer_Release(&s->rows);
    s->has_rows = 0;
    s->row_at = s->row_end = s->row_size = 0;
    s->step = s->sequence = s->rss = s->allocated = s->reserved = s->flags = 0;
    s->quick = s->lead = s->due = 0;
    s->begin = s->since = now_ns(s);
    return PyErr_Occurred() ? -1 : 0;
}

static void Switch_dealloc(Switch *s) {
    PyTypeObject *type = Py_TYPE((PyObject *)s);
    Py_XDECREF(s->mark);
    Py_XDECREF(s->clock);
    Py_XDECREF(s->cpu_clock);
    if (s->has_live) PyBuffer_Release(&s->live);
    if (s->has_rows) PyBuffer_Release(&s->rows);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(s);
    Py_DECREF(type);
}

static PyMethodDef Switch_methods[] = {
    {"enter", (PyCFunction)Switch_enter, METH_O, NULL},
    {"enter_inside", (PyCFunction)Switch_enter_inside, METH_O, NULL},
    {"enter_compute", (PyCFunction)Switch_enter_compute, METH_O, NULL},
    {"enter_optimizer", (PyCFunction)Switch_enter_optimizer, METH_NOARGS, NULL},
    {"enter_validation", (PyCFunction)Switch_enter_validation, METH_NOARGS, NULL},
    {"leave", (PyCFunction)Switch_leave, METH_O, NULL},
    {"gradients_ready", (PyCFunction)Switch_gradients_ready, METH_NOARGS, NULL},
    {"charged", (PyCFunction)Switch_charged, METH_O, NULL},
    {"move", (PyCFunction)Switch_move, METH_VARARGS, NULL},
    {"flush", (PyCFunction)Switch_flush, METH_O, NULL},
    {"restart", (PyCFunction)Switch_restart, METH_O, NULL},
    {"rows_into", (PyCFunction)Switch_rows_into, METH_VARARGS, NULL},
    {"publish", (PyCFunction)Switch_publish, METH_VARARGS, NULL},
    {"return_to", (PyCFunction)Switch_return_to, METH_O, NULL},
    {"leave_step", (PyCFunction)Switch_leave_step, METH_VARARGS, NULL},
    {"fetched", (PyCFunction)Switch_fetched, METH_VARARGS, NULL},
    {"forget_counts", (PyCFunction)Switch_forget_counts, METH_NOARGS, NULL},
    {"show_in", (PyCFunction)Switch_show_in, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef Switch_members[] = {
    {"thread", T_LONGLONG, offsetof(Switch, thread), 0, NULL},
    {"current", T_LONGLONG, offsetof(Switch, current), 0, NULL},
    {"since", T_LONGLONG, offsetof(Switch, since), READONLY, NULL},
    {"begin", T_LONGLONG, offsetof(Switch, begin), READONLY, NULL},
    {"switches", T_LONGLONG, offsetof(Switch, switches), READONLY, NULL},
    {"fetches", T_LONGLONG, offsetof(Switch, fetches), READONLY, NULL},
    {"backwards", T_LONGLONG, offsetof(Switch, backwards), READONLY, NULL},
    {"samples", T_LONGLONG, offsetof(Switch, samples), 0, NULL},
    {"tokens", T_LONGLONG, offsetof(Switch, tokens), READONLY, NULL},
    {"gc_ns", T_LONGLONG, offsetof(Switch, gc_ns), 0, NULL},
    {"gc_wait_ns", T_LONGLONG, offsetof(Switch, gc_wait_ns), 0, NULL},
    {"step", T_LONGLONG, offsetof(Switch, step), 0, NULL},
    {"sequence", T_LONGLONG, offsetof(Switch, sequence), READONLY, NULL},
    {"rss", T_LONGLONG, offsetof(Switch, rss), 0, NULL},
    {"allocated", T_LONGLONG, offsetof(Switch, allocated), 0, NULL},
    {"reserved", T_LONGLONG, offsetof(Switch, reserved), 0, NULL},
    {"flags", T_LONGLONG, offsetof(Switch, flags), 0, NULL},
    {"quick", T_LONGLONG, offsetof(Switch, quick), 0, NULL},
    {"lead", T_LONGLONG, offsetof(Switch, lead), 0, NULL},
    {"due", T_LONGLONG, offsetof(Switch, due), 0, NULL},
    {"row_at", T_PYSSIZET, offsetof(Switch, row_at), READONLY, NULL},
    {"row_end", T_PYSSIZET, offsetof(Switch, row_end), READONLY, NULL},
    {"mark", T_OBJECT, offsetof(Switch, mark), 0, NULL},
    {"clock", T_OBJECT, offsetof(Switch, clock), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot Switch_slots[] = {
    {Py_tp_init, Switch_init},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, Switch_dealloc},
    {Py_tp_methods, Switch_methods},
    {Py_tp_members, Switch_members},
    {0, NULL},
};

static PyType_Spec Switch_spec = {
    "traceml.capture._switch.Switch", sizeof(Switch), 0, Py_TPFLAGS_DEFAULT, Switch_slots,
};

/* configure(names and numbers, is_wait, after): what catalog.py and switch.py say */
static PyObject *configure(PyObject *module, PyObject *args) {
    const char *is_wait, *after;
    Py_ssize_t n, m;
    if (!PyArg_ParseTuple(args, "iiiiiiiiiiiiiiiiLiiiy#y#", &cfg.slots, &cfg.recorded, &cfg.first_user,
                          &cfg.first_wait, &cfg.after_validation, &cfg.pending_eval, &cfg.pending_fetch,
                          &cfg.input, &cfg.forward, &cfg.backward, &cfg.sync, &cfg.optimizer, &cfg.validation,
                          &cfg.wait_start, &cfg.wait_forward, &cfg.wait_other, &cfg.short_gap_ns,
                          &cfg.gap_weight, &cfg.watch_from, &cfg.watch_most, &is_wait, &n, &after, &m))
        return NULL;
    if (cfg.slots > MOST_SLOTS || n != cfg.slots || m != cfg.slots) {
        cfg.slots = 0;
        PyErr_SetString(PyExc_ValueError, "slot tables do not fit");
        return NULL;
    }
    memcpy(cfg.is_wait, is_wait, (size_t)n);
    memcpy(cfg.after, after, (size_t)m);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"configure", configure, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_switch", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__switch(void) {
    PyObject *made = PyModule_Create(&module);
    if (made == NULL) return NULL;
    PyObject *type = PyType_FromSpec(&Switch_spec);
    if (type == NULL || PyModule_AddObjectRef(made, "Switch", type) < 0) {
        Py_XDECREF(type);
        Py_DECREF(made);
        return NULL;
    }
    Py_DECREF(type);
    return made;
}
