// Loops of the host program whose iterations need nothing of each other, on several threads.
#pragma once
#include "weft_host.h"

namespace weft {

// `run` runs the iterations from `first` up to `end`.  `begin` gives a copy of the call, whose frame is another
// thread's, memory for what each iteration has for itself; `finish` frees what the last iteration has left.
template <class Call> struct Iterations {
  Status (*run)(Call& call, i64 first, i64 end);
  void (*begin)(Call& call);
  void (*finish)(Call& call);
};

template <class Call> struct SharedLoop {
  const Iterations<Call>* iterations;
  Call* call;
  i64 trips, chunk;
  i64 next;  // the first iteration that no thread has taken
  i64 failed;  // the first iteration of the chunk that failed, of those the earliest
  Status status;
  bool locked;
};

// Threads take chunks in order, so that what comes before a chunk that failed has been run, or fails too.
template <class Call> static void note_failure(SharedLoop<Call>& loop, const Call& call, i64 first, Status status) {
  __atomic_store_n(&loop.next, loop.trips, __ATOMIC_RELAXED);
  while (__atomic_test_and_set(&loop.locked, __ATOMIC_ACQUIRE)) {}
  if (first < loop.failed) {
    loop.failed = first;
    loop.status = status;
    loop.call->failed = call.failed;
    loop.call->error = call.error;
    if (status == operator_failed) keep_message(loop.call->frame);  // the exception is this thread's own
  }
  __atomic_clear(&loop.locked, __ATOMIC_RELEASE);
}

template <class Call> static void run_loop_share(void* raw) {
  SharedLoop<Call>& loop = *(SharedLoop<Call>*)raw;
  Call call = *loop.call;
  for (int thread = api.omp_get_thread_num(); thread > 0; --thread) call.frame = call.frame->helper;
  const bool grad = api.grad_enabled();  // a setting of each thread
  if (grad) api.set_grad_enabled(false);
  loop.iterations->begin(call);
  for (;;) {
    const i64 first = __atomic_fetch_add(&loop.next, loop.chunk, __ATOMIC_RELAXED);
    if (first >= loop.trips) break;
    const i64 end = min_index(first + loop.chunk, loop.trips);
    const Status status = loop.iterations->run(call, first, end);
    if (status == ok) continue;
    note_failure(loop, call, first, status);
    break;
  }
  loop.iterations->finish(call);
  if (grad) api.set_grad_enabled(true);
}

// What torch and libraries call runs on one thread inside a parallel region, so few long iterations are left
// to them.
template <class Call> static Status run_loop(
    Call& call, const Iterations<Call>& iterations, i64 trips, f64 nanoseconds, i64 max_threads, i64 views) {
  const i64 threads = useful_threads(trips, nanoseconds, max_threads);
  if (threads < 2 || trips < most_threads(max_threads) || !with_helpers(call.frame, threads, views))
    return iterations.run(call, 0, trips);
  const i64 chunk = max_index(1, trips / (8 * threads));
  SharedLoop<Call> loop = {&iterations, &call, trips, chunk, 0, trips, ok, false};
  api.GOMP_parallel(run_loop_share<Call>, &loop, unsigned(threads), 0);
  return loop.status;
}

}  // namespace weft
