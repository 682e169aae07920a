/* The phase switch of switch.py in C: the same slots and the same answers at a fraction of the cost.
 *
 * Optional: where this module cannot be built or loaded, the Python class in switch.py does the work. It is built
 * against the limited API, so one binary serves every CPython from 3.10 on (not the free-threaded builds).
 * switch.py passes the constants of slots.py to configure(), so they are written down once.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* RUSAGE_THREAD */
#endif
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <structmember.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#ifdef __linux__
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#endif

#ifdef Py_GIL_DISABLED /* `gradient_ready` is called by other threads and relies on the interpreter's lock */
#error "free-threaded Python uses the switch in Python"
#endif

/* Wheels for aarch64 are compiled with the headers of the machine that builds them. */
_Static_assert(sizeof(void *) == SIZEOF_VOID_P && sizeof(long) == SIZEOF_LONG && sizeof(size_t) == SIZEOF_SIZE_T &&
                   sizeof(wchar_t) == SIZEOF_WCHAR_T,
               "pyconfig.h describes another data model than the target's");

/* The limited API has the buffer protocol from 3.11 on; Python's headers hide it from a module that also serves 3.10.
 * 3.10 exports the same functions with the same struct (compare its cpython/object.h) and no longer changes. */
#ifndef PyBUF_WRITABLE
typedef struct {
    void *buf;
    PyObject *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
} Py_buffer;
#define PyBUF_WRITABLE 0x0001
extern int PyObject_GetBuffer(PyObject *exporter, Py_buffer *view, int flags);
extern void PyBuffer_Release(Py_buffer *view);
#endif

/* The limited API has vectorcall from 3.12 on; Python exports it from 3.11 on (hence weak: see `call`). Through it a seam
 * adds nothing to the depth of recursion, which deep models need. */
#ifndef PY_VECTORCALL_ARGUMENTS_OFFSET
typedef PyObject *(*vectorcallfunc)(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames);
#define PY_VECTORCALL_ARGUMENTS_OFFSET ((size_t)1 << (8 * sizeof(size_t) - 1))
#define Py_TPFLAGS_HAVE_VECTORCALL (1UL << 11)
extern PyObject *PyObject_Vectorcall(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
    __attribute__((weak));
extern PyObject *PyVectorcall_Call(PyObject *callable, PyObject *tuple, PyObject *dict);
#endif

#ifdef __APPLE__ /* the clock of time.perf_counter_ns: Python code and this file compare their readings */
#define WALL_CLOCK CLOCK_UPTIME_RAW
#else
#define WALL_CLOCK CLOCK_MONOTONIC
#endif

#if defined(__linux__) && defined(__has_builtin)
#if __has_builtin(__builtin_thread_pointer)
#define HAS_THREAD_POINTER
#endif
#endif

#define MOST_SLOTS 64
#define PASS (-9)
#define FAILED (-99)
#define LOOK (-100)

#define MOST_LEFT_OVER 16

static struct {
    int slots, recorded, first_user, first_wait, pending_gap; /* in the order of switch.py */
    int input, forward, no_grad, backward, sync, optimizer, validation, checkpoint, wait_start, wait_forward;
    int short_gap_ns, gap_weight, watch_at_first, watch_from, watch_most;
    int look_always_ns, look_every, look_on, look_fade, look_share, input_inferred;
    double node_factors[2];
    unsigned char is_wait[MOST_SLOTS];
    unsigned char after[MOST_SLOTS];
    unsigned char left_over[MOST_LEFT_OVER]; /* pairs: from, to */
    int left_overs;
    PyObject *method, *switch_type;        /* types.MethodType, and Switch itself; configure() gives what is above */
    PyObject *enter_block, *leave_block;   /* trace_step in Python, for what is unusual */
    PyObject *block_switch;                /* the switch whose steps trace_step ends */
    PyObject *training, *trains, *shape;   /* names of attributes */
    PyObject *tensor;                      /* torch.Tensor, */
    lenfunc tensor_length;                 /* and the size of its first dimension, 0 also if it has none */
} cfg;

/* What every call touches comes first: between two calls a training fills the caches with its own. */
typedef struct {
    PyObject_HEAD
    long long thread, current, since;
    void *asked; /* foreign: by which thread, for which, and the answer */
    long long asked_for, is_foreign;
    unsigned char *shown;                    /* the byte of the live area that says which slot is current, or NULL */
    PyObject *mark;                          /* None or callable(slot): the device clock */
    PyObject *layers;                        /* None or, in a sampled step of deep mode, what through_layers calls */
    long long attention;                     /* the next calls need more than the fast path: their Python twin runs */
    long long loader;                        /* address of the iterator that last gave a batch to train on */
    long long looks, is_watched, switches, forwards, backwards, fetches, look_first; /* mostly of the running step */
    long long first_start;
    int sampled, own_clock;
    long long block_depth, phase_slot, busy_wait_ns;
    int64_t totals[MOST_SLOTS];
    unsigned char watch[MOST_SLOTS];
    long long gradients, begin, samples, tokens, gc_ns, gc_wait_ns, step_flags, blocks, input_from;        /* of the running step */
    long long step, sequence, rss, allocated, reserved, flags;                                   /* of the rows */
    long long fast_end, leader, reading_due; /* steps that this optimizer ends before `reading_due` need no Python */
    long long visit;                         /* nor do steps before this one */
    Py_buffer rows;
    int has_rows;
    Py_ssize_t row_at, row_end, row_size;
    /* What this costs itself, in one of SAMPLE_EVERY steps: time, steps, calls that only passed, calls that were
     * timed; see own_cost_shown. */
    int64_t own[4];
    long long watching, looks_left, long_ns, span_ns; /* long gaps: see _end_gap in switch.py */
    double uses[2 * MOST_SLOTS][3]; /* of gaps that were read, see switch.py */
    long long cpu_since, blocked_since, nodes_since, phase_began, phase_nodes, step_nodes;
    double node_forward, node_backward;
    PyObject *count_nodes;  /* None or callable(): operations that autograd has recorded */
    PyObject *clock;        /* for Python code; read here only when tests replace it */
    PyObject *thread_clock;
    Py_buffer live;
    int has_live;
    Py_ssize_t live_at;
} Switch;

static volatile int truncated; /* another program cut off the file that the rows go to */

enum { OWN_NS, OWN_STEPS, OWN_PASSES, OWN_SWITCHES };
#define SAMPLE_EVERY 16
#define OWN_AT 24           /* in the live area, behind the phase: layout.LIVE_OWN */
#define OWN_SWITCHES_AT 56  /* layout.LIVE_OWN_SWITCHES */
#define OWN_MOST_NS 200000  /* longer: something else had the core meanwhile */

static int64_t read_ns(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t call_number(PyObject *clock) {
    Py_INCREF(clock); /* it may replace itself while it runs */
    PyObject *value = PyObject_CallNoArgs(clock);
    int64_t number = value == NULL ? -1 : PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred()) PyErr_WriteUnraisable(clock); /* no caller expects this of a clock */
    Py_DECREF(clock);
    Py_XDECREF(value);
    return number;
}

static inline int64_t now_ns(Switch *s) {
    return s->own_clock ? call_number(s->clock) : read_ns(WALL_CLOCK);
}

/* CPU time of this thread, and how often it has blocked; -1 where that is not counted. */
typedef struct {
    int64_t cpu_ns, blocked;
} ThreadUse;

static ThreadUse thread_use(Switch *s) {
    ThreadUse use = {0, -1};
    if (s->own_clock) {
        PyObject *value = PyObject_CallNoArgs(s->thread_clock);
        if (value != NULL) PyArg_ParseTuple(value, "LL", &use.cpu_ns, &use.blocked);
        Py_XDECREF(value);
        if (PyErr_Occurred()) PyErr_Clear();
        return use;
    }
#ifdef __linux__
    struct rusage r;
    if (getrusage(RUSAGE_THREAD, &r) == 0) use.blocked = r.ru_nvcsw; /* its CPU time is up to a tick late */
#endif
    use.cpu_ns = read_ns(CLOCK_THREAD_CPUTIME_ID);
    return use;
}

static inline int at(long long slot) { return (int)(slot < 0 ? slot + cfg.slots : slot); }

/* Is this another thread than the one that trains? Asked in every call, so the answer of a thread is kept: no two
 * threads that live have the same thread pointer, which a register holds. */
static inline int foreign(Switch *s) {
#ifdef HAS_THREAD_POINTER
    if (__builtin_thread_pointer() == s->asked && s->thread == s->asked_for) return s->is_foreign;
    s->asked = __builtin_thread_pointer();
    s->asked_for = s->thread;
    s->is_foreign = (long long)PyThread_get_thread_ident() != s->thread;
    return s->is_foreign;
#else
    return (long long)PyThread_get_thread_ident() != s->thread;
#endif
}

static inline void show(Switch *s) {
    if (s->shown != NULL) *s->shown = (unsigned char)s->current;
}

static void own_cost_shown(Switch *s) {
    if (!s->has_live || s->live.len < s->live_at + OWN_SWITCHES_AT + 8) return;
    char *to = (char *)s->live.buf + s->live_at;
    memcpy(to + OWN_AT, s->own, OWN_SWITCHES * sizeof *s->own);
    memcpy(to + OWN_SWITCHES_AT, s->own + OWN_SWITCHES, sizeof *s->own);
}

static inline void own_cost(Switch *s, int64_t ns) {
    if (ns > 0 && ns < OWN_MOST_NS) s->own[OWN_NS] += ns;
}

static int tell_mark(Switch *s, long long ended) {
    PyObject *mark = s->mark; /* ours while it runs: it may replace itself */
    if (mark == NULL) return 0;
    PyObject *slot = PyLong_FromLongLong(ended);
    if (slot == NULL) return -1;
    Py_INCREF(mark);
    PyObject *done = PyObject_CallFunctionObjArgs(mark, slot, NULL);
    Py_DECREF(mark);
    Py_DECREF(slot);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static inline int tell(Switch *s, long long ended) { return s->mark == Py_None ? 0 : tell_mark(s, ended); }

static int64_t nodes_now(Switch *s) {
    return s->count_nodes == NULL || s->count_nodes == Py_None ? 0 : call_number(s->count_nodes);
}

static int64_t nodes_after(Switch *s, int64_t nodes) {
    return s->count_nodes == NULL || s->count_nodes == Py_None ? 1 : nodes_now(s) - nodes;
}

static void learn_node(Switch *s, int64_t now) {
    double took = (double)(now - s->phase_began);
    if (s->phase_slot == cfg.forward) {
        int64_t count = nodes_after(s, s->phase_nodes);
        s->node_forward = took / (double)(count > 0 ? count : 1);
    } else {
        int64_t count = s->phase_nodes - s->step_nodes;
        s->node_backward = took / (double)(count > 0 ? count : 1);
        s->step_nodes = s->phase_nodes;
    }
    s->phase_slot = 0;
}

static void begin_gap(Switch *s) {
    if (!s->looks || s->watch[at(s->current)] < cfg.watch_from) return;
    ThreadUse use = thread_use(s);
    s->cpu_since = use.cpu_ns;
    s->blocked_since = use.blocked;
    s->is_watched = 1;
    s->nodes_since = nodes_now(s);
}

static int use_of_gap(Switch *s, int64_t gap, long long before, int64_t *busy, int64_t *work) {
    int place = at(s->current), is_short = 0;
    double *uses = s->uses[2 * place + (before >= 0)];
    if (s->is_watched) {
        ThreadUse use = thread_use(s);
        int64_t ran = use.cpu_ns - s->cpu_since;
        int was_ready = use.blocked >= 0 && use.blocked == s->blocked_since; /* whenever it did not run */
        *busy = ran > gap || was_ready ? gap : ran;
        is_short = was_ready && ran <= cfg.short_gap_ns;
        if (before >= 0) {
            double node_ns = s->node_forward > s->node_backward ? s->node_forward : s->node_backward;
            double allowed = (double)nodes_after(s, s->nodes_since) * node_ns * cfg.node_factors[before != cfg.forward];
            *work = allowed < (double)ran ? (int64_t)((double)*busy * (allowed / (double)ran)) : *busy;
        }
        if (gap >= cfg.look_always_ns) return is_short;
        uses[0] += (double)gap;
        uses[1] += (double)*busy;
        uses[2] += (double)*work;
    } else if (!s->looks && s->watch[place] >= cfg.watch_from && uses[0] > 0) {
        double alike = (double)(gap < cfg.look_always_ns ? gap : cfg.look_always_ns);
        *busy = (int64_t)(alike * (uses[1] / uses[0]));
        *work = (int64_t)(alike * (uses[2] / uses[0]));
    }
    return is_short;
}

static void short_gap(Switch *s) {
    unsigned char *watch = &s->watch[at(s->current)];
    if (*watch && --*watch == cfg.watch_from - 1) s->watching -= 1;
}

static int64_t end_gap(Switch *s, int64_t now, long long before) {
    int64_t gap = now - s->since, work = 0;
    unsigned char *watch = &s->watch[at(s->current)];
    if (gap <= cfg.short_gap_ns) {
        int is_loss = before == cfg.backward || (before >= 0 && s->current == cfg.wait_forward);
        short_gap(s);
        if (!is_loss) s->busy_wait_ns += gap;
        return is_loss ? gap : 0;
    }
    int64_t busy = 0;
    int is_short = use_of_gap(s, gap, before, &busy, &work);
    s->busy_wait_ns += busy - work;
    if (is_short) {
        short_gap(s);
        return work;
    }
    if (gap >= cfg.look_always_ns) s->long_ns += gap;
    int seen = *watch;
    *watch = (unsigned char)(seen + cfg.gap_weight > cfg.watch_most ? cfg.watch_most : seen + cfg.gap_weight);
    if (seen < cfg.watch_from && *watch >= cfg.watch_from) {
        s->watching += 1;
        s->looks_left = cfg.look_on;
    }
    return work;
}

/* The slot that was current before; FAILED with an exception set when the device clock raised. */
static long long start(Switch *s, int64_t now, long long slot, long long charged) {
    long long outer = s->current;
    s->since = now;
    s->current = slot;
    s->is_watched = 0;
    s->switches += 1;
    if (slot == cfg.forward) s->forwards += 1;
    if (slot == cfg.backward) s->backwards += 1;
    show(s);
    if (s->sampled && !s->first_start) s->first_start = now;
    if (s->looks && (slot == cfg.forward || slot == cfg.backward)) {
        s->phase_slot = slot;
        s->phase_began = now;
        s->phase_nodes = nodes_now(s);
    }
    return tell(s, charged) < 0 ? FAILED : outer;
}

static long long inside(Switch *s, long long slot) {
    int64_t now = now_ns(s);
    if (cfg.is_wait[at(s->current)]) end_gap(s, now, -1);
    s->totals[at(s->current)] += now - s->since;
    return start(s, now, slot, s->current);
}

static PyObject *answer(long long outer) { return outer == FAILED ? NULL : PyLong_FromLongLong(outer); }

static int slot_of(PyObject *arg, long long *slot) {
    *slot = PyLong_AsLongLong(arg);
    if (*slot == -1 && PyErr_Occurred()) return -1;
    if (*slot < cfg.pending_gap || *slot >= cfg.slots) {
        PyErr_SetString(PyExc_ValueError, "no such slot");
        return -1;
    }
    return 0;
}

/* A method that takes a slot. */
#define OF_SLOT(name, result)                                  \
    static PyObject *Switch_##name(Switch *s, PyObject *arg) { \
        long long slot;                                        \
        return slot_of(arg, &slot) < 0 ? NULL : (result);      \
    }

OF_SLOT(enter_inside, answer(inside(s, slot)))
OF_SLOT(enter, answer(s->current < cfg.first_user || foreign(s) ? PASS : inside(s, slot)))

static long long compute(Switch *s, long long slot) {
    long long outer = s->current;
    if (outer == cfg.optimizer && slot != cfg.optimizer && !foreign(s)) return inside(s, slot); /* a closure */
    if (outer < cfg.first_user || foreign(s)) return PASS;
    if (!cfg.is_wait[at(outer)]) return inside(s, slot);
    int64_t now = now_ns(s), gap = now - s->since, work = end_gap(s, now, slot);
    s->totals[cfg.forward] += work;
    s->totals[at(outer)] += gap - work;
    return start(s, now, slot, 2 * work >= gap ? cfg.forward : outer);
}

OF_SLOT(enter_compute, answer(compute(s, slot)))

/* The time; -1 with an exception set when the device clock raised. */
static int64_t return_to(Switch *s, long long outer) {
    long long slot = s->current;
    int64_t now = now_ns(s);
    s->totals[at(slot)] += now - s->since;
    s->since = now;
    s->current = outer;
    if (cfg.is_wait[at(outer)]) {
        if (s->phase_slot) learn_node(s, now);
        begin_gap(s);
    }
    show(s);
    return tell(s, slot) < 0 ? -1 : now;
}

static int64_t leave(Switch *s, long long outer) {
    int stays = s->current == cfg.optimizer || !cfg.is_wait[at(outer)];
    return return_to(s, stays ? outer : cfg.after[at(s->current)]);
}

static PyObject *time_or_error(int64_t now) { return now < 0 && PyErr_Occurred() ? NULL : PyLong_FromLongLong(now); }

OF_SLOT(return_to, time_or_error(return_to(s, slot)))
OF_SLOT(leave, time_or_error(leave(s, slot)))
OF_SLOT(charged, PyLong_FromLongLong(s->totals[at(slot)]))

/* A hook on parameters. The gradient of this one is ready: up to here it was work, what follows the last one is
 * waiting. Any thread may say so, because the training thread is inside the backward call and the caller holds the
 * interpreter's lock. */
static PyObject *Switch_gradient_ready(Switch *s, PyObject *parameter) {
    s->gradients += 1;
    if (s->current != cfg.backward && s->current != cfg.sync) Py_RETURN_NONE;
    int64_t now = now_ns(s);
    s->totals[cfg.backward] += now - s->since;
    s->since = now;
    s->current = cfg.sync;
    show(s);
    if (tell(s, cfg.backward) < 0) return NULL;
    Py_RETURN_NONE;
}

static void move(Switch *s, int source, int target) {
    s->totals[target] += s->totals[source];
    s->totals[source] = 0;
}

static PyObject *Switch_move(Switch *s, PyObject *args) {
    PyObject *first, *second;
    long long source, target;
    if (!PyArg_ParseTuple(args, "OO", &first, &second) || slot_of(first, &source) < 0 || slot_of(second, &target) < 0)
        return NULL;
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
    s->fetches = s->forwards = s->backwards = s->samples = s->tokens = 0;
    s->gc_ns = s->gc_wait_ns = s->busy_wait_ns = 0;
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
    memset(s->totals, 0, (size_t)cfg.slots * sizeof *s->totals);
    clear_counts(s);
    int64_t began = s->begin;
    s->begin = s->since = now;
    s->switches = s->step_flags = s->looks = 0;
    if (s->watching) {
        s->looks_left -= 1;
        s->long_ns -= s->long_ns >> cfg.look_fade;
        s->span_ns += (now > began ? now - began : 0) - (s->span_ns >> cfg.look_fade);
        s->looks = s->looks_left > 0 || s->looks_left % cfg.look_every == 0 || s->long_ns * cfg.look_share > s->span_ns;
    }
    if (s->looks)
        for (double *use = s->uses[2 * cfg.first_wait]; use < s->uses[0] + 6 * cfg.slots; use++) *use /= 2;
    if (!cfg.is_wait[at(s->current)]) return;
    s->current = cfg.wait_start;
    show(s);
    s->is_watched = 0;
    if (s->looks) {
        begin_gap(s);
        s->step_nodes = nodes_now(s);
    }
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
    Py_ssize_t least = (3 + cfg.recorded + 3) * 8 + 8 * 4 + 8;
    int fits = offset >= 0 && size >= least && end >= offset && end <= rows.len && (end - offset) % size == 0;
    if (!fits || ((uintptr_t)rows.buf + (uintptr_t)offset) % 8 || size % 8) { /* a row is published by one atomic store */
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

static uint32_t half(long long count) {
    return count < 0 ? 0 : count > UINT32_MAX ? UINT32_MAX : (uint32_t)count;
}

/* Write the row of the step that ends at `now`, its sequence number last; begin the next step. */
static void write_row(Switch *s, int64_t now, long long flags) {
    if (now > s->since && cfg.is_wait[at(s->current)]) end_gap(s, now, -1);
    s->totals[at(s->current)] += now - s->since;
    s->since = now;
    int i;
    for (i = 0; i < cfg.left_overs; i += 2) move(s, cfg.left_over[i], cfg.left_over[i + 1]);
    if (s->input_from > 0 && s->input_from < cfg.slots && s->totals[s->input_from]) {
        move(s, (int)s->input_from, cfg.input);
        s->step_flags |= cfg.input_inferred;
    }
    s->step += 1;
    s->sequence += 1;
    char *row = (char *)s->rows.buf + s->row_at;
    int64_t *words = (int64_t *)row;
    *words++ = s->step;
    *words++ = s->begin;
    *words++ = now;
    memcpy(words, s->totals, (size_t)cfg.recorded * sizeof *words);
    words += cfg.recorded;
    *words++ = s->rss;
    *words++ = s->allocated;
    *words++ = s->reserved;
    uint32_t halves[8] = {half(s->samples), half(s->tokens), (uint32_t)(flags | s->step_flags),
                          half(s->fetches ? s->fetches : s->backwards), half(s->switches),
                          half(s->busy_wait_ns / 1000), half(s->gc_ns / 1000), half(s->gc_wait_ns / 1000)};
    memcpy(words, halves, sizeof halves);
    __atomic_store_n((int64_t *)(row + s->row_size - 8), (int64_t)s->sequence, __ATOMIC_RELEASE);
    s->row_at += s->row_size;
    if (truncated) s->attention = 1; /* the next end of a step says so */
    if (s->sampled) {
        s->own[OWN_STEPS] += 1;
        s->own[OWN_SWITCHES] += s->switches;
        own_cost_shown(s);
    }
    s->sampled = !s->own_clock && s->sequence % SAMPLE_EVERY == SAMPLE_EVERY / 2;
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

/* An optimizer's step was left: 1 when nothing is left to do, because its row is written or a block ends the step. */
static int ends_step(Switch *s, PyObject *optimizer) {
    if (s->attention) return 0;
    if (s->blocks) return 1;
    if (!s->fast_end || (long long)(intptr_t)optimizer != s->leader || s->since >= s->reading_due ||
        s->step + 1 >= s->visit || s->row_at >= s->row_end || !cfg.is_wait[at(s->current)])
        return 0;
    write_row(s, s->since, s->flags);
    return 1;
}

static PyObject *Switch_ends_step(Switch *s, PyObject *optimizer) { return PyBool_FromLong(ends_step(s, optimizer)); }

/* ---- a recording that somebody truncates ------------------------------------------------------------------------- */

#ifdef __linux__
static Switch *guarded;
static struct sigaction before_us;
static uintptr_t page_bytes;

static int holds(Py_buffer *view, int is_there, uintptr_t at) {
    uintptr_t from = (uintptr_t)view->buf & ~(page_bytes - 1);
    return is_there && at >= from && at < (uintptr_t)view->buf + (uintptr_t)view->len;
}

/* A page of a mapped file that was cut off: the row goes to an empty page instead, and the training goes on. Every
 * other bus error is handled as it would be without us. */
static void on_bus_error(int number, siginfo_t *info, void *context) {
    uintptr_t at = (uintptr_t)info->si_addr;
    if (info->si_code == BUS_ADRERR && (holds(&guarded->rows, guarded->has_rows, at) || holds(&guarded->live, guarded->has_live, at))) {
        void *page = (void *)(at & ~(page_bytes - 1));
        if (mmap(page, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page) {
            truncated = 1;
            return;
        }
    }
    sigaction(SIGBUS, &before_us, NULL); /* a fault happens again when we return */
    if (info->si_code <= 0) raise(number); /* sent by a process */
}

static void guard(Switch *s) {
    struct sigaction ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    guarded = s;
    if (page_bytes) return;
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    sigemptyset(&ours.sa_mask);
    sigaction(SIGBUS, &ours, &before_us);
}
#else
static void guard(Switch *s) {}
#endif

static PyObject *was_truncated(PyObject *module, PyObject *unused) {
    return PyBool_FromLong(truncated);
}

static PyObject *Switch_show_in(Switch *s, PyObject *args) {
    PyObject *buffer;
    Py_ssize_t offset;
    Py_buffer live;
    if (!PyArg_ParseTuple(args, "On", &buffer, &offset)) return NULL;
    if (PyObject_GetBuffer(buffer, &live, PyBUF_WRITABLE) < 0) return NULL;
    if (offset < 0 || offset >= live.len) {
        PyBuffer_Release(&live);
        PyErr_SetString(PyExc_ValueError, "offset outside the buffer");
        return NULL;
    }
    Py_buffer before = s->live;
    int had_live = s->has_live;
    s->live = live;
    s->live_at = offset;
    s->has_live = 1;
    s->shown = (unsigned char *)live.buf + offset;
    guard(s);
    if (had_live) PyBuffer_Release(&before);
    Py_RETURN_NONE;
}

/* Give back what this switch, or what it was before, holds. */
static void drop(Switch *s) {
    PyObject *held[] = {s->mark, s->layers, s->count_nodes, s->clock, s->thread_clock};
    if (s->has_live) PyBuffer_Release(&s->live);
    if (s->has_rows) PyBuffer_Release(&s->rows);
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) Py_XDECREF(held[i]);
}

static int Switch_init(Switch *s, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"clock", "thread_clock", NULL};
    PyObject *clock = NULL, *thread_clock = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO", names, &clock, &thread_clock)) return -1;
    if (cfg.slots == 0) {
        PyErr_SetString(PyExc_RuntimeError, "configure() first");
        return -1;
    }
    PyObject *time = PyImport_ImportModule("time");
    PyObject *usual_clock = time == NULL ? NULL : PyObject_GetAttrString(time, "perf_counter_ns");
    Py_XDECREF(time);
    if (usual_clock == NULL) return -1;
    Switch before = *s;
    memset(&s->thread, 0, sizeof *s - offsetof(Switch, thread));
    s->own_clock = clock != NULL;
    s->clock = Py_NewRef(clock ? clock : usual_clock);
    s->thread_clock = Py_NewRef(thread_clock);
    s->mark = Py_NewRef(Py_None);
    s->count_nodes = Py_NewRef(Py_None);
    s->layers = Py_NewRef(Py_None);
    s->thread = -1;
    s->current = cfg.wait_start;
    memset(s->watch, cfg.watch_at_first, sizeof s->watch);
    s->visit = LLONG_MAX;
    s->attention = 1;
    Py_DECREF(usual_clock);
    drop(&before);
    s->begin = s->since = now_ns(s);
    return PyErr_Occurred() ? -1 : 0;
}

static void Switch_dealloc(Switch *s) {
    PyTypeObject *type = Py_TYPE((PyObject *)s);
    drop(s);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(s);
    Py_DECREF(type);
}

#define METHOD(name, takes) {#name, (PyCFunction)Switch_##name, takes, NULL}

static PyMethodDef Switch_methods[] = {
    METHOD(enter, METH_O), METHOD(enter_inside, METH_O), METHOD(enter_compute, METH_O), METHOD(leave, METH_O),
    METHOD(return_to, METH_O), METHOD(gradient_ready, METH_O), METHOD(charged, METH_O), METHOD(flush, METH_O),
    METHOD(restart, METH_O), METHOD(ends_step, METH_O), METHOD(move, METH_VARARGS), METHOD(publish, METH_VARARGS),
    METHOD(fetched, METH_VARARGS), METHOD(rows_into, METH_VARARGS), METHOD(show_in, METH_VARARGS),
    {NULL, NULL, 0, NULL},
};

static PyObject *Switch_get_current(Switch *s, void *unused) { return PyLong_FromLongLong(s->current); }

static int Switch_set_current(Switch *s, PyObject *value, void *unused) {
    long long slot;
    if (value == NULL || slot_of(value, &slot) < 0) {
        if (value == NULL) PyErr_SetString(PyExc_AttributeError, "current cannot be deleted");
        return -1;
    }
    s->current = slot;
    return 0;
}

static PyGetSetDef Switch_getset[] = {
    {"current", (getter)Switch_get_current, (setter)Switch_set_current, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

#define MEMBER(name, kind, flags) {#name, kind, offsetof(Switch, name), flags, NULL}
#define NUMBER(name) MEMBER(name, T_LONGLONG, 0)
#define READ(name) MEMBER(name, T_LONGLONG, READONLY)

static PyMemberDef Switch_members[] = {
    READ(since), READ(begin), READ(switches), READ(forwards), READ(watching), READ(sequence),
    MEMBER(row_at, T_PYSSIZET, READONLY), MEMBER(row_end, T_PYSSIZET, READONLY), MEMBER(clock, T_OBJECT, READONLY),
    NUMBER(thread), NUMBER(attention), NUMBER(loader), NUMBER(blocks), NUMBER(block_depth), NUMBER(look_first),
    NUMBER(fetches), NUMBER(backwards), NUMBER(samples), NUMBER(tokens), NUMBER(gradients), NUMBER(busy_wait_ns), NUMBER(gc_ns),
    NUMBER(gc_wait_ns), NUMBER(input_from), NUMBER(step_flags), NUMBER(step), NUMBER(rss), NUMBER(allocated),
    NUMBER(reserved), NUMBER(flags), NUMBER(fast_end), NUMBER(leader), NUMBER(reading_due), NUMBER(visit), NUMBER(first_start),
    MEMBER(mark, T_OBJECT, 0), MEMBER(layers, T_OBJECT, 0), MEMBER(count_nodes, T_OBJECT, 0),
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot Switch_slots[] = {
    {Py_tp_init, Switch_init},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, Switch_dealloc},
    {Py_tp_methods, Switch_methods},
    {Py_tp_members, Switch_members},
    {Py_tp_getset, Switch_getset},
    {0, NULL},
};

static PyType_Spec Switch_spec = {
    "traceml.capture._switch.Switch", sizeof(Switch), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, Switch_slots,
};

/* ---- Seam: a wrapped call whose usual case needs no Python frame ------------------------------------------------ */

enum { SEAM_FORWARD, SEAM_BACKWARD, SEAM_FETCH, SEAM_EXCHANGE, SEAM_PHASE, SEAM_STEP };

typedef struct {
    PyObject_HEAD
    PyObject *original; /* what is wrapped */
    PyObject *twin;     /* the same wrapper in Python: takes over whenever something is unusual; or optimizer_at */
    PyObject *failed;   /* failed(slot, exception): an exception left the phase */
    PyCFunction quick;  /* the C function behind `extra`, if it is one without arguments, */
    PyObject *quick_self; /* and what it is called with */
    PyObject *extra;    /* forward: is gradient recording on? fetch: count this batch; backward: it is over;
                           step: (optimizer, now), look whether the step is over */
    PyObject *dict;
    vectorcallfunc call;
    Switch *sw;
    int kind, slot;
    Py_ssize_t optimizer_at; /* step: which argument is the optimizer */
} Seam;

/* 1 when the attribute is there and true, else 0; never an exception. Most have it without asking `__getattr__`. */
static int is_true(PyObject *object, PyObject *name) {
    PyObject *value = PyObject_GenericGetAttr(object, name);
    if (value == NULL) {
        PyErr_Clear();
        value = PyObject_GetAttr(object, name);
    }
    int found = value == NULL ? 0 : PyObject_IsTrue(value);
    Py_XDECREF(value);
    if (value == NULL || found < 0) PyErr_Clear();
    return found == 1;
}

/* The slot of the fast path; LOOK: the twin must look; PASS: not ours to time, call what is wrapped. */
static int usual(Seam *m, PyObject *first) {
    Switch *s = m->sw;
    long long current = s->current;
    if (m->kind == SEAM_EXCHANGE)
        return current == cfg.sync || current == cfg.validation || current == cfg.checkpoint || foreign(s) ? PASS : m->slot;
    if (m->kind == SEAM_STEP && (current == cfg.backward || current == cfg.sync)) return foreign(s) ? PASS : m->slot;
    if (m->kind == SEAM_PHASE || m->kind == SEAM_STEP) return current < cfg.first_user || foreign(s) ? PASS : m->slot;
    if (m->kind == SEAM_BACKWARD && foreign(s)) return s->thread == -1 ? PASS : LOOK; /* has training moved there? */
    if (current < cfg.first_user && current != cfg.optimizer) return PASS;
    if (s->attention) return LOOK;
    if (foreign(s)) return PASS;
    if (m->kind == SEAM_FORWARD) {
        int trains = first != NULL && is_true(first, cfg.training);
        PyObject *grad = m->quick != NULL ? m->quick(m->quick_self, NULL) : PyObject_CallNoArgs(m->extra);
        int is_on = grad == Py_True;
        Py_XDECREF(grad);
        if (grad == NULL) PyErr_Clear();
        if (is_on) return trains && (s->forwards || !s->look_first) ? m->slot : LOOK;
        /* Without gradients: a part of the step that has begun, or a rollout. After a validation (the first slot behind
         * those of a row) it may be the loss of that. */
        if (current == cfg.optimizer || current == cfg.recorded) return LOOK;
        return trains || s->fetches || s->forwards || s->block_depth ? cfg.no_grad : LOOK;
    }
    if (m->kind != SEAM_FETCH || (first != NULL && (long long)(intptr_t)first == s->loader)) return m->slot;
    if (first == NULL || !is_true(first, cfg.trains)) return LOOK;
    s->loader = (long long)(intptr_t)first;
    return m->slot;
}

/* The size of the first dimension; -1 if there is none. */
static long long first_dimension(PyObject *tensor) {
    if ((PyObject *)Py_TYPE(tensor) == cfg.tensor) {
        Py_ssize_t length = cfg.tensor_length(tensor);
        if (length > 0) return length;
        PyErr_Clear();
    }
    long long size = -1;
    PyObject *shape = PyObject_GetAttr(tensor, cfg.shape);
    if (shape != NULL && PyTuple_Check(shape) && PyTuple_Size(shape) > 0)
        size = PyLong_AsLongLong(PyTuple_GetItem(shape, 0));
    Py_XDECREF(shape);
    if (PyErr_Occurred()) PyErr_Clear();
    return size;
}

/* The samples of a tensor, or of a list, tuple or dict of tensors; 0 when it is another kind and Python must look. */
static int count_batch(Switch *s, PyObject *batch) {
    PyObject *first = batch, *key, *ids = NULL;
    Py_ssize_t place = 0;
    if (PyList_CheckExact(batch))
        first = PyList_Size(batch) ? PyList_GetItem(batch, 0) : NULL;
    else if (PyTuple_CheckExact(batch))
        first = PyTuple_Size(batch) ? PyTuple_GetItem(batch, 0) : NULL;
    else if (PyDict_CheckExact(batch)) {
        if (!PyDict_Next(batch, &place, &key, &first)) first = NULL;
        ids = PyDict_GetItemString(batch, "input_ids");
    }
    if (first == NULL) return 0;
    Py_INCREF(first); /* its attributes may change the batch */
    Py_XINCREF(ids);
    long long samples = first_dimension(first), tokens = 0;
    Py_DECREF(first);
    if (ids != NULL) {
        PyObject *count = PyObject_CallMethod(ids, "numel", NULL);
        tokens = count == NULL ? -1 : PyLong_AsLongLong(count);
        Py_XDECREF(count);
        Py_DECREF(ids);
    }
    if (PyErr_Occurred()) PyErr_Clear();
    if (samples < 0 || tokens < 0) return 0;
    s->fetches += 1;
    s->samples += samples;
    s->tokens += tokens;
    return 1;
}

/* Call the session, without losing the exception that is on its way. */
static void tell_failed(Seam *m, int way) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *slot = PyLong_FromLong(way);
    PyObject *done = slot == NULL ? NULL : PyObject_CallFunctionObjArgs(m->failed, slot, value, NULL);
    Py_XDECREF(slot);
    Py_XDECREF(done);
    if (done == NULL) PyErr_Clear();
    PyErr_Restore(type, value, trace);
}

/* The same call with other means where Python (3.10) does not export vectorcall. */
static PyObject *call_plainly(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names) {
    Py_ssize_t count = (Py_ssize_t)(nargsf & ~PY_VECTORCALL_ARGUMENTS_OFFSET), i;
    PyObject *tuple = PyTuple_New(count), *dict = names == NULL ? NULL : PyDict_New(), *result = NULL;
    if (tuple == NULL || (names != NULL && dict == NULL)) goto done;
    for (i = 0; i < count; i++) PyTuple_SetItem(tuple, i, Py_NewRef(args[i]));
    for (i = 0; names != NULL && i < PyTuple_Size(names); i++)
        if (PyDict_SetItem(dict, PyTuple_GetItem(names, i), args[count + i]) < 0) goto done;
    result = PyObject_Call(callable, tuple, dict);
done:
    Py_XDECREF(tuple);
    Py_XDECREF(dict);
    return result;
}

static inline PyObject *call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names) {
    return (PyObject_Vectorcall != NULL ? PyObject_Vectorcall : call_plainly)(callable, args, nargsf, names);
}

/* The optimizer that steps: the first argument, or, of a GradScaler, its argument `optimizer`. */
static PyObject *stepping(Seam *m, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    Py_ssize_t i;
    if (m->optimizer_at < count) return args[m->optimizer_at];
    for (i = 0; names != NULL && i < PyTuple_Size(names); i++)
        if (PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, i), "optimizer") == 0) return args[count + i];
    return Py_None;
}

/* Is an optimizer's step given a closure? That is code of the training loop, which its twin tells apart. */
static int has_closure(Seam *m, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    Py_ssize_t i;
    if (m->kind != SEAM_STEP || m->optimizer_at || (count < 2 && names == NULL)) return 0;
    if (count > 1) return PyCallable_Check(args[1]);
    for (i = 0; i < PyTuple_Size(names); i++)
        if (PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, i), "closure") == 0) return PyCallable_Check(args[count + i]);
    return 0;
}

/* The fast path: what is wrapped, timed as `way`. */
static PyObject *timed(Seam *m, int way, PyObject *const *args, size_t nargsf, PyObject *names) {
    Switch *s = m->sw;
    Py_ssize_t count = (Py_ssize_t)(nargsf & ~PY_VECTORCALL_ARGUMENTS_OFFSET);
    int in_backward = s->current == cfg.backward || s->current == cfg.sync;
    int is_compute = (way == cfg.forward || way == cfg.backward || way == cfg.optimizer) && !in_backward;
    long long outer = is_compute ? compute(s, way) : inside(s, way);
    if (outer == FAILED) return NULL;
    if (outer == PASS) return call(m->original, args, nargsf, names);
    PyObject *result = call(m->original, args, nargsf, names);
    if (result == NULL) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        /* A loader that has no more batches: we are still where we were. */
        int stays = m->kind == SEAM_EXCHANGE || m->kind == SEAM_FETCH;
        if (m->kind == SEAM_FETCH) s->loader = 0; /* the next iterator may get the address of this one */
        if ((stays ? return_to(s, outer) : leave(s, outer)) < 0) PyErr_Clear();
        PyErr_Restore(type, value, trace);
        if (m->kind != SEAM_FETCH || !PyErr_ExceptionMatches(PyExc_StopIteration)) tell_failed(m, way);
        return NULL;
    }
    int64_t now = m->kind == SEAM_EXCHANGE ? return_to(s, outer) : leave(s, outer);
    PyObject *done = Py_None;
    if (now < 0 && PyErr_Occurred())
        done = NULL;
    else if (m->kind == SEAM_FETCH && !count_batch(s, result))
        done = PyObject_CallFunctionObjArgs(m->extra, result, NULL);
    else if (m->kind == SEAM_BACKWARD && s->attention) /* an optimizer stepped inside this backward pass */
        done = PyObject_CallNoArgs(m->extra);
    else if (m->kind == SEAM_STEP) {
        PyObject *optimizer = stepping(m, args, count, names);
        if (!ends_step(s, optimizer)) {
            PyObject *time = PyLong_FromLongLong(now);
            done = time == NULL ? NULL : PyObject_CallFunctionObjArgs(m->extra, optimizer, time, NULL);
            Py_XDECREF(time);
        }
    }
    if (done != Py_None) Py_XDECREF(done);
    if (done == NULL) {
        Py_DECREF(result);
        return NULL;
    }
    return result;
}

static PyObject *phase_call(Seam *m, PyObject *const *args, size_t nargsf, PyObject *names) {
    Switch *s = m->sw;
    int64_t began = s->sampled && s->current >= cfg.first_user ? now_ns(s) : 0; /* of an outermost call */
    Py_ssize_t count = (Py_ssize_t)(nargsf & ~PY_VECTORCALL_ARGUMENTS_OFFSET);
    int way = usual(m, count ? args[0] : NULL);
    if (way == PASS) {
        if (s->current < cfg.first_user) s->own[OWN_PASSES] += s->sampled;
        return call(m->original, args, nargsf, names);
    }
    if (has_closure(m, args, count, names)) way = LOOK;
    if (began) s->first_start = 0; /* one of a call that Python timed may be left */
    PyObject *result = way == LOOK ? call(m->twin, args, nargsf, names) : timed(m, way, args, nargsf, names);
    if (began) {
        if (s->first_start > began) {
            own_cost(s, s->first_start - began);
            own_cost(s, now_ns(s) - s->since);
        }
        s->first_start = 0;
    }
    return result;
}

/* An exception is on its way: `done` is what our own call returned, and one that it raised comes on top. */
static void keep_both(PyObject *type, PyObject *value, PyObject *trace, PyObject *done) {
    if (done != NULL) {
        PyErr_Restore(type, value, trace);
        return;
    }
    PyObject *new_type, *new_value, *new_trace;
    PyErr_Fetch(&new_type, &new_value, &new_trace);
    PyErr_NormalizeException(&new_type, &new_value, &new_trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (new_value != NULL && value != NULL) PyException_SetContext(new_value, Py_NewRef(value));
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    PyErr_Restore(new_type, new_value, new_trace);
}

/* Deep mode, in a sampled step: `layers` is (begin, end) for modules, then for backward passes. begin(first argument)
 * returns None, or what end(that, whether it failed) gets. Neither is on the stack while the user's code runs. */
static PyObject *through_layers(Seam *m, PyObject *const *args, size_t nargsf, PyObject *names) {
    PyObject *layers = Py_NewRef(m->sw->layers), *began = NULL, *result = NULL, *done = Py_None;
    int is_set = PyTuple_CheckExact(layers) && PyTuple_Size(layers) == 4;
    if (is_set) began = PyObject_CallFunctionObjArgs(PyTuple_GetItem(layers, 2 * m->kind), args[0], NULL);
    if (began != NULL || !is_set) result = phase_call(m, args, nargsf, names);
    if (began != NULL && began != Py_None) {
        PyObject *type, *value, *trace, *failed = result == NULL ? Py_True : Py_False;
        PyErr_Fetch(&type, &value, &trace);
        done = PyObject_CallFunctionObjArgs(PyTuple_GetItem(layers, 2 * m->kind + 1), began, failed, NULL);
        if (result == NULL) keep_both(type, value, trace, done);
        if (done == NULL && result != NULL) {
            Py_DECREF(result);
            result = NULL;
        }
        if (done != NULL) Py_DECREF(done);
    }
    Py_XDECREF(began);
    Py_DECREF(layers);
    return result;
}

static PyObject *Seam_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names) {
    Seam *m = (Seam *)self;
    PyObject *layers = m->sw->layers;
    if (layers != NULL && layers != Py_None && m->kind <= SEAM_BACKWARD && (nargsf & ~PY_VECTORCALL_ARGUMENTS_OFFSET))
        return through_layers(m, args, nargsf, names);
    return phase_call(m, args, nargsf, names);
}

static PyObject *Seam_get(PyObject *self, PyObject *object, PyObject *type) {
    if (object == NULL || object == Py_None) return Py_NewRef(self);
    return PyObject_CallFunctionObjArgs(cfg.method, self, object, NULL);
}

static int Seam_init(Seam *m, PyObject *args, PyObject *kwargs) {
    PyObject *original, *twin, *failed, *extra, *sw;
    int kind, slot;
    if (!PyArg_ParseTuple(args, "OOOOO!ii", &original, &twin, &failed, &extra, cfg.switch_type, &sw, &kind, &slot))
        return -1;
    Py_ssize_t optimizer_at = kind == SEAM_STEP && PyLong_Check(twin) ? PyLong_AsSsize_t(twin) : 0;
    if (kind < SEAM_FORWARD || kind > SEAM_STEP || slot < 0 || slot >= cfg.slots || optimizer_at < 0) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "no such kind, slot or argument");
        return -1;
    }
    /* A seam lives as long as the process: its references are never given back. */
    m->original = Py_NewRef(original);
    m->twin = Py_NewRef(twin);
    m->failed = Py_NewRef(failed);
    m->extra = Py_NewRef(extra);
    m->sw = (Switch *)Py_NewRef(sw);
    m->kind = kind;
    m->slot = slot;
    m->optimizer_at = optimizer_at;
    if (PyObject_TypeCheck(extra, &PyCFunction_Type) && PyCFunction_GetFlags(extra) == METH_NOARGS) {
        m->quick = PyCFunction_GetFunction(extra);
        m->quick_self = PyCFunction_GetSelf(extra);
    }
    m->call = Seam_call;
    return 0;
}

/* Found by its name, as a function is: copy and deepcopy return the seam itself. What a script defines in its main
 * module, cloudpickle sends by value, to processes that need not have TraceML: they get what is wrapped. */
static PyObject *Seam_reduce(PyObject *self, PyObject *unused) {
    PyObject *module = PyObject_GetAttrString(self, "__module__");
    int is_main = module != NULL && PyUnicode_Check(module) && !PyUnicode_CompareWithASCIIString(module, "__main__");
    Py_XDECREF(module);
    if (!is_main) PyErr_Clear();
    if (!is_main) return PyObject_GetAttrString(self, "__qualname__");
    PyObject *copy = PyImport_ImportModule("copy");
    PyObject *same = copy == NULL ? NULL : PyObject_GetAttrString(copy, "copy"); /* of a function: itself */
    Py_XDECREF(copy);
    return same == NULL ? NULL : Py_BuildValue("N(O)", same, ((Seam *)self)->original);
}

static PyMethodDef Seam_methods[] = {
    {"__reduce__", Seam_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef Seam_members[] = {
    {"__dictoffset__", T_PYSSIZET, offsetof(Seam, dict), READONLY, NULL},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Seam, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef Seam_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot Seam_slots[] = {
    {Py_tp_init, Seam_init},     {Py_tp_new, PyType_GenericNew}, {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, Seam_get}, {Py_tp_members, Seam_members},  {Py_tp_getset, Seam_getset},
    {Py_tp_methods, Seam_methods},
    {0, NULL},
};

static PyType_Spec Seam_spec = {
    "traceml.capture._switch.Seam", sizeof(Seam), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_HAVE_VECTORCALL, Seam_slots,
};

/* ---- trace_step: a block that is a step -------------------------------------------------------------------------- */

enum { NOT_ENTERED, ENTERED_HERE, ENTERED_IN_PYTHON };

typedef struct {
    PyObject_HEAD
    int way;
} Block;

static int Block_init(Block *b, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"model", NULL};
    PyObject *model;
    b->way = NOT_ENTERED;
    return PyArg_ParseTupleAndKeywords(args, kwargs, "|O:trace_step", names, &model) ? 0 : -1;
}

/* The switch, if nothing about this block is unusual; else NULL. */
static Switch *usual_block(long long depth) {
    Switch *s = (Switch *)cfg.block_switch;
    return s != NULL && s->blocks && s->block_depth == depth && !s->attention && !foreign(s) && cfg.is_wait[at(s->current)]
               ? s : NULL;
}

static PyObject *Block_enter(Block *b, PyObject *unused) {
    Switch *s = usual_block(0);
    if (s != NULL) {
        int64_t began = s->sampled ? now_ns(s) : 0;
        b->way = ENTERED_HERE;
        s->block_depth = 1;
        if (!s->fetches) { /* an unclaimed gap since the last step was waiting for input */
            int64_t now = now_ns(s);
            s->totals[at(s->current)] += now - s->since;
            s->since = now;
            move(s, cfg.wait_start, cfg.input);
            s->step_flags |= cfg.input_inferred;
        }
        if (began) own_cost(s, now_ns(s) - began);
        Py_RETURN_NONE;
    }
    if (cfg.enter_block == NULL) Py_RETURN_NONE; /* nothing records */
    PyObject *found = PyObject_CallNoArgs(cfg.enter_block);
    if (found == NULL) return NULL;
    if (PyObject_TypeCheck(found, (PyTypeObject *)cfg.switch_type)) {
        PyObject *old = cfg.block_switch;
        cfg.block_switch = Py_NewRef(found);
        Py_XDECREF(old);
    }
    b->way = found == Py_None ? NOT_ENTERED : ENTERED_IN_PYTHON;
    Py_DECREF(found);
    Py_RETURN_NONE;
}

static PyObject *Block_exit(Block *b, PyObject *args) {
    PyObject *kind, *value, *trace;
    if (!PyArg_ParseTuple(args, "OOO", &kind, &value, &trace)) return NULL;
    int way = b->way;
    b->way = NOT_ENTERED;
    if (way == NOT_ENTERED) Py_RETURN_NONE;
    Switch *s = kind == Py_None ? usual_block(1) : NULL;
    if (s != NULL && s->fast_end && s->has_rows && s->row_at < s->row_end) {
        int64_t now = now_ns(s);
        if (now < s->reading_due && s->step + 1 < s->visit) {
            int is_sampled = s->sampled;
            s->block_depth = 0;
            write_row(s, now, s->flags);
            if (is_sampled) own_cost(s, now_ns(s) - now);
            Py_RETURN_NONE;
        }
    }
    s = (Switch *)cfg.block_switch;
    int64_t began = s != NULL && s->sampled ? now_ns(s) : 0;
    PyObject *done = PyObject_CallFunctionObjArgs(cfg.leave_block, kind == Py_None ? Py_False : Py_True, NULL);
    if (began) own_cost(s, now_ns(s) - began);
    return done;
}

static PyMethodDef Block_methods[] = {
    {"__enter__", (PyCFunction)Block_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)Block_exit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot Block_slots[] = {
    {Py_tp_init, Block_init},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_methods, Block_methods},
    {Py_tp_doc, "`with trace_step(model):` around one training step. Its exit ends the step."},
    {0, NULL},
};

static PyType_Spec Block_spec = {"traceml.trace_step", sizeof(Block), 0, Py_TPFLAGS_DEFAULT, Block_slots};

/* blocks_use(enter_block, leave_block): enter_block() -> the switch or None; leave_block(failed) */
static PyObject *blocks_use(PyObject *module, PyObject *args) {
    PyObject *enter, *leave_it;
    if (!PyArg_ParseTuple(args, "OO", &enter, &leave_it)) return NULL;
    Py_XDECREF(cfg.enter_block);
    Py_XDECREF(cfg.leave_block);
    cfg.enter_block = Py_NewRef(enter);
    cfg.leave_block = Py_NewRef(leave_it);
    Py_RETURN_NONE;
}

/* configure(the begin of `cfg`, MethodType): what slots.py says */
static PyObject *configure(PyObject *module, PyObject *args) {
    const char *given;
    Py_ssize_t size;
    PyObject *method;
    if (!PyArg_ParseTuple(args, "y#O", &given, &size, &method)) return NULL;
    if ((char *)&cfg + size == (char *)(&cfg.left_overs + 1)) memcpy(&cfg, given, (size_t)size);
    if (cfg.slots <= 0 || cfg.slots > MOST_SLOTS || cfg.left_overs > MOST_LEFT_OVER || cfg.left_overs % 2) {
        cfg.slots = 0;
        PyErr_SetString(PyExc_ValueError, "slot tables do not fit");
        return NULL;
    }
    cfg.method = Py_NewRef(method);
    Py_RETURN_NONE;
}

/* tensors_are(torch.Tensor, its base in C): how batches are counted without looking an attribute up */
static PyObject *tensors_are(PyObject *module, PyObject *args) {
    PyObject *tensor, *base;
    if (!PyArg_ParseTuple(args, "O!O!", &PyType_Type, &tensor, &PyType_Type, &base)) return NULL;
    cfg.tensor_length = (lenfunc)PyType_GetSlot((PyTypeObject *)base, Py_mp_length);
    cfg.tensor = cfg.tensor_length == NULL ? NULL : Py_NewRef(tensor);
    PyErr_Clear();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"tensors_are", tensors_are, METH_VARARGS, NULL},
    {"configure", configure, METH_VARARGS, NULL},
    {"blocks_use", blocks_use, METH_VARARGS, NULL},
    {"was_truncated", was_truncated, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_switch", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__switch(void) {
    struct { const char *name; PyType_Spec *spec; } types[] = {
        {"Seam", &Seam_spec}, {"trace_step", &Block_spec}, {"Switch", &Switch_spec},
    };
    PyObject *made = PyModule_Create(&module);
    for (size_t i = 0; made != NULL && i < sizeof types / sizeof *types; i++) {
        cfg.switch_type = PyType_FromSpec(types[i].spec); /* the last one is kept: seams check what they are given */
        if (cfg.switch_type == NULL || PyModule_AddObjectRef(made, types[i].name, cfg.switch_type) < 0) return NULL;
    }
    cfg.training = PyUnicode_InternFromString("training");
    cfg.trains = PyUnicode_InternFromString("_traceml_trains");
    cfg.shape = PyUnicode_InternFromString("shape");
    return cfg.training == NULL || cfg.trains == NULL || cfg.shape == NULL ? NULL : made;
}
