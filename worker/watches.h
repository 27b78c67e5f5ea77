// Inside the worker library: descriptors of the application that wake its worker.
#ifndef WORKER_WATCHES_H_
#define WORKER_WATCHES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"

namespace baton {

// Thread-compatible: the worker's thread.
class Watches {
 public:
  // The smallest number of an event of a watch. Smaller ones are the library's.
  static constexpr uint64_t kFirstEvent = 1 << 4;
  static constexpr size_t kMost = 256;

  // Call it once, before Add. The epoll set `epoll` must outlive this object.
  void Open(int epoll) { epoll_ = epoll; }

  // Worker::Watch and Worker::Unwatch.
  absl::Status Add(int fd, std::function<void()> callback);
  void Remove(int fd);

  // The epoll set has reported `event`, which is at least kFirstEvent.
  void Note(uint64_t event) { due_.push_back(event); }
  bool due() const { return !due_.empty(); }
  bool empty() const { return watches_.empty(); }
  // Calls the callbacks of the events that were noted, and `commit` before the first and after
  // each: what a callback stages is a transaction of its own. If `commit` returns false, the rest
  // waits for another look. Returns how many it has called.
  int Run(const std::function<bool()>& commit);

 private:
  struct Watch {
    int fd = -1;
    // Shared, because a callback may remove its own watch.
    std::shared_ptr<const std::function<void()>> callback;
  };
  using Map = std::map<uint64_t, Watch>;  // by the numbers of their events, which are used once

  Map::iterator Find(int fd);

  int epoll_ = -1;
  uint64_t next_event_ = kFirstEvent;
  Map watches_;
  std::vector<uint64_t> due_;
};

}  // namespace baton

#endif  // WORKER_WATCHES_H_
