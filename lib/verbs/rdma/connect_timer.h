// How long connections that were asked for wait for an answer: the kernel's connection manager
// would ask for more than a minute (CMA_MAX_CM_RETRIES), and takes no other number.
#ifndef LIB_VERBS_RDMA_CONNECT_TIMER_H_
#define LIB_VERBS_RDMA_CONNECT_TIMER_H_

#include <cstdint>
#include <deque>

#include "absl/status/status.h"
#include "lib/base/file_descriptor.h"

namespace baton::verbs::rdma {

class RdmaConnectionId;

class ConnectTimer {
 public:
  absl::Status Open(uint32_t timeout_ms);

  void Add(RdmaConnectionId* connection);     // begins to wait now
  void Remove(RdmaConnectionId* connection);  // if it waits
  // One that has waited long enough, and waits no more; nullptr: there is none.
  RdmaConnectionId* TakeExpired();

  int fd() const { return timer_.get(); }  // readable when there may be one
  uint32_t timeout_ms() const { return timeout_ms_; }

 private:
  struct Waiting {
    uint64_t deadline_ns;
    RdmaConnectionId* connection;
  };

  void Arm();

  FileDescriptor timer_;
  uint32_t timeout_ms_ = 0;
  std::deque<Waiting> waiting_;  // all equally long: the first is the next
};

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_CONNECT_TIMER_H_
