// Keeps a GPU busy for so many nanoseconds.
extern "C" __global__ void hold(unsigned long long duration) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < duration);
}
