// SPDX-License-Identifier: MIT OR Apache-2.0
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

static int thrown, caught;
struct Guard {
  int &count;
  ~Guard() { count += 1; }
};
class Counter {
  int value = 0;
  int cleanups = 0;

public:
  int step(int n) {
    Guard guard{cleanups};
    for (int i = 0; i < n; i++) {
      value += i;
      if (i == 7 && n % 5 == 0) {
        thrown++;
        throw std::runtime_error(std::to_string(value));
      }
      for (int j = 0; j < 3; j++)
        value ^= j;
    }
    return value;
  }
  int ended() const { return cleanups; }
};
template <typename T> static T twice(T value) {
  T result = value;
  result += value;
  return result;
}
int main() {
  Counter counter;
  std::map<std::string, int> seen;
  long sum = 0;
  for (int n = 0; n < 2000; n++) {
    try {
      sum += twice(counter.step(n % 40));
    } catch (const std::runtime_error &error) {
      caught++;
      seen[error.what()]++;
    }
  }
  auto add = [&sum](int n) { sum += n; };
  for (int n : std::vector<int>{1, 2, 3})
    add(n);
  std::printf("%ld %d %d %d %zu\n", sum, thrown, caught, counter.ended(), seen.size());
}
