// SPDX-License-Identifier: MIT OR Apache-2.0
#include <coroutine>
#include <cstdio>

static int resumed;
struct Generator {
  struct promise_type {
    int value = 0;
    Generator get_return_object() {
      return {std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    std::suspend_always initial_suspend() { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    std::suspend_always yield_value(int next) {
      value = next;
      return {};
    }
    void return_void() {}
    void unhandled_exception() {}
  };
  std::coroutine_handle<promise_type> handle;
};
static Generator squares(int n) {
  for (int i = 0; i < n; i++) {
    int square = i * i;
    resumed++;
    co_yield square;
  }
}
int main() {
  long sum = 0;
  for (int round = 0; round < 100; round++) {
    Generator generator = squares(50);
    while (generator.handle.resume(), !generator.handle.done())
      sum += generator.handle.promise().value;
    generator.handle.destroy();
  }
  std::printf("%ld %d\n", sum, resumed);
}
