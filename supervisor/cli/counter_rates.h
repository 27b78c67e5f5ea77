// How fast counters grow. Of no clock: times are told.
//
// Thread-compatible.
#ifndef SUPERVISOR_CLI_COUNTER_RATES_H_
#define SUPERVISOR_CLI_COUNTER_RATES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace baton {

class CounterRates {
 public:
  // Per second, from the last time that `key` was seen. None where that cannot be told: the first
  // time, when the process that counts, `incarnation`, is another one, when the counter has gone
  // down, and when no time has passed.
  std::optional<double> Update(const std::string& key, uint64_t incarnation, uint64_t value,
                               double now_seconds);
  // Those that were not seen since.
  void ForgetOlderThan(double seconds);

 private:
  struct Seen {
    uint64_t incarnation;
    uint64_t value;
    double seconds;
  };
  std::map<std::string, Seen> seen_;
};

}  // namespace baton

#endif  // SUPERVISOR_CLI_COUNTER_RATES_H_
