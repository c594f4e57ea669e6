// Builds kernels.cu for the CPU: a thread for the movers of every block and one for its posters, a lane each.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <thread>
#include <vector>
#define BLINKSIM_HOST
#define DEVICE static inline
#define DEVICE_METHOD inline
#define SHARED static thread_local
// What both threads of a block see lies where the launch says.
static thread_local void* of_block;
#define SHARED_WITH_POSTERS(type, name) type& name = *static_cast<type*>(of_block)
#define KERNEL extern "C" void
struct Dim { unsigned x; };
static thread_local Dim blockIdx, gridDim = {1}, threadIdx = {0};
#define POSTERS (PACKETS ? 0 : 1)
static inline int movers() { return 1; }
static inline void sync_movers() {}
static inline int sync_and(int v) { return v; }
// The launch has prepared what the posters read: the movers write zeros over zeros.
static inline void sync_all() {}
static inline void rest() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }
static inline unsigned read_shared(const unsigned* p) {
  return reinterpret_cast<const std::atomic<unsigned>*>(p)->load(std::memory_order_acquire);
}
static inline void write_shared(unsigned* p, unsigned v) {
  reinterpret_cast<std::atomic<unsigned>*>(p)->store(v, std::memory_order_release);
}
static inline void atomicMin(unsigned long long* p, unsigned long long v) { if (v < *p) *p = v; }
struct alignas(16) Line { unsigned int w[4]; };
static inline Line load_line(const void* p) { Line v; std::memcpy(&v, p, 16); return v; }
static inline void store_line(void* p, Line v) { std::memcpy(p, &v, 16); }
static inline unsigned long long load_acquire(const unsigned long long* p) {
  auto v = reinterpret_cast<const std::atomic<unsigned long long>*>(p)->load(std::memory_order_acquire);
  static thread_local int n; if (++n % 16 == 0) std::this_thread::yield();
  return v;
}
static inline void store_release(unsigned long long* p, unsigned long long v) {
  reinterpret_cast<std::atomic<unsigned long long>*>(p)->store(v, std::memory_order_release);
}
// As slow as a test wants it, in microseconds.
static inline void fence() {
  const char* wanted = std::getenv("BLINKSIM_FENCE_US");
  if (wanted) std::this_thread::sleep_for(std::chrono::microseconds(std::atoi(wanted)));
}
static inline void store_fenced(unsigned long long* p, unsigned long long v) { store_release(p, v); }
// A warp of one thread: a cell is there when the last word of its line is.
static const int WARP = 1;
static inline bool all_of(bool mine) { return mine; }
static inline void together() {}
static inline unsigned of_first(unsigned mine) { return mine; }
template <class C> static inline bool load_cell(const char* line, int slot, unsigned long long launch, C& v) {
  if (load_acquire(reinterpret_cast<const unsigned long long*>(line + 120)) != launch) return false;
  std::memcpy(&v, line + 16 * slot, 16);
  return true;
}
template <class C> static inline void store_cell(char* line, int slot, C v) {
  if (slot < 7) { std::memcpy(line + 16 * slot, &v, 16); return; }
  std::memcpy(line + 112, &v.w[0], 8);
  store_release(reinterpret_cast<unsigned long long*>(line + 120), v.w[1]);
}
static inline unsigned long long nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
static inline unsigned long long cycles() { return nanoseconds(); }
static inline unsigned long long atomicCAS(unsigned long long* p, unsigned long long a, unsigned long long b) {
  reinterpret_cast<std::atomic<unsigned long long>*>(p)->compare_exchange_strong(a, b); return a;
}
template <class T> static inline T atomicAdd(T* p, T v) { return reinterpret_cast<std::atomic<T>*>(p)->fetch_add(v); }
static inline float from_bits(unsigned int b) { float f; std::memcpy(&f, &b, 4); return f; }
static inline unsigned int to_bits(float f) { unsigned int b; std::memcpy(&b, &f, 4); return b; }
static inline float from_half(unsigned short h) { _Float16 x; std::memcpy(&x, &h, 2); return x; }
static inline unsigned short to_half(float f) { _Float16 x = f; unsigned short h; std::memcpy(&h, &x, 2); return h; }
#include KERNELS
#ifndef BLINKSIM_CALLS
extern "C" void launch(int devices, const i64* const* tables, u64 epoch, u64 timeout, u64* const* errors) {
  std::vector<std::thread> blocks;
  std::deque<Mail> mails;
  for (int d = 0; d < devices; ++d)
    for (unsigned b = 0; b == 0 || b < tables[d][0] * tables[d][1]; ++b) {
      Mail* const mail = &mails.emplace_back();
      const auto run = [=](unsigned t) {
        blockIdx.x = b, threadIdx.x = t, of_block = mail;
        run_program(tables[d], tables[d][QUEUES], tables[d][STRIDE], epoch, timeout, errors[d]);
      };
      blocks.emplace_back([=] {
        std::vector<std::thread> posters;
        for (int t = 0; t < POSTERS; ++t) posters.emplace_back(run, movers() + t);
        run(0);
        for (auto& t : posters) t.join();  // they read the movers' copy of the queue
      });
    }
  for (auto& t : blocks) t.join();
}
#else
// One rank's launch of a call.
extern "C" void launch_call(const i64* table, i64 rank, i64 ranks, u64* state, u64* notes, char* input, char* output,
                            u64 signature, u64 timeout) {
  std::vector<std::thread> blocks;
  std::deque<Mail> mails;
  for (unsigned b = 0; b == 0 || b < table[0] * table[1]; ++b) {
    Mail* const mail = &mails.emplace_back();
    const auto run = [=](unsigned t) {
      blockIdx.x = b, threadIdx.x = t, of_block = mail;
      gridDim.x = table[0] ? table[0] * table[1] : 1;
      run_call(table, table[QUEUES], table[STRIDE], rank, ranks, state, notes, input, output, signature, timeout);
    };
    blocks.emplace_back([=] {
      std::vector<std::thread> posters;
      for (int t = 0; t < POSTERS; ++t) posters.emplace_back(run, movers() + t);
      run(0);
      for (auto& t : posters) t.join();
    });
  }
  for (auto& t : blocks) t.join();
}
#endif
#ifndef BLINKSIM_CALLS
extern "C" void stream(unsigned blocks, const i64* addresses, i64 sources, i64 targets, i64 count) {
  for (unsigned b = 0; b < blocks; ++b) blockIdx.x = b, gridDim.x = blocks, run_stream(addresses, sources, targets, count);
}
#endif
