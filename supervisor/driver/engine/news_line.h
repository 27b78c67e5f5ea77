// Reports to `baton-driver` from the processes that it has forked, for the keeper's event log.
#ifndef SUPERVISOR_DRIVER_ENGINE_NEWS_LINE_H_
#define SUPERVISOR_DRIVER_ENGINE_NEWS_LINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace baton::driver_process {

// -1, and worker 0: it is about none.
struct News {
  std::string kind;
  std::string message;
  uint64_t worker_id = 0;
  int shard = -1, connection = -1;
};

// A line is "<kind> <worker> <shard> <connection> <message>". A longer one is cut. A line is one
// write to a pipe of packets (O_DIRECT, pipe(2)).
inline constexpr size_t kNewsBytes = 1024;
std::string NewsLine(std::string_view kind, std::string_view message, uint64_t worker_id = 0,
                     int shard = -1, int connection = -1);

// Passes the valid lines that have come to `baton-driver`'s end to `tell`, a bounded number per
// call.
void ReadNews(int pipe, const std::function<void(const News&)>& tell);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_NEWS_LINE_H_
