// One view of `baton top`, and how it is drawn.
#ifndef SUPERVISOR_CLI_TOP_VIEW_H_
#define SUPERVISOR_CLI_TOP_VIEW_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "proto/baton/v1/operator.pb.h"
#include "supervisor/cli/format.h"

namespace baton {

class CounterRates {
 public:
  // Returns the rate per second since `key` was last seen. Returns none the first time, if the
  // counting process (`incarnation`) has changed, if the counter has gone down, or if no time has
  // passed.
  std::optional<double> Update(const std::string& key, uint64_t incarnation, uint64_t value,
                               double now_seconds);
  // Forgets keys that were not seen since then.
  void ForgetOlderThan(double seconds);

 private:
  struct Seen {
    uint64_t incarnation;
    uint64_t value;
    double seconds;
  };
  std::map<std::string, Seen> seen_;
};

// Per second; none: not known yet.
struct TopRates {
  std::optional<double> commits;
  std::optional<double> sends;
  std::optional<double> completions;
};

struct TopShard {
  std::string service;
  v1::Shard shard;
  TopRates rates;
};

struct TopService {
  v1::Service service;
  uint64_t in_flight = 0;
  TopRates rates;  // of all its shards; known if one shard's is
};

struct TopView {
  v1::GetStatusResponse status;
  std::vector<TopService> services;  // by name
  std::vector<TopShard> shards;      // by service and number
};

// `described`: the services that can be reached. Updates `rates`.
TopView MakeTopView(const v1::GetStatusResponse& status,
                    const std::vector<v1::GetServiceResponse>& described, double now_seconds,
                    CounterRates* rates);

enum class TopSort : uint8_t { kShard, kCommits, kInFlight };
TopSort Next(TopSort sort);

struct TopFrame {
  TopSort sort = TopSort::kShard;
  std::string note = {};  // at the end of the first line: what keys do, or why nothing changes
  TableStyle style = {};
};
// Lines have at most 80 columns if names are short.
std::string RenderTop(const TopView& view, const TopFrame& frame);
// Returns one object on one line.
std::string RenderTopAsJson(const TopView& view);

std::string FormatRate(const std::optional<double>& rate);  // "-", "0.3", "812", "12.3k", "4.56M"

}  // namespace baton

#endif  // SUPERVISOR_CLI_TOP_VIEW_H_
