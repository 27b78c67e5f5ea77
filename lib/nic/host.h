#ifndef LIB_NIC_HOST_H_
#define LIB_NIC_HOST_H_

#include <functional>
#include <string>

#include "lib/nic/event_loop.h"
#include "lib/nic/objects.h"
#include "lib/nic/soft_options.h"

namespace baton::nic {

// Reports what no correct client does.
using Complain = std::function<void(const std::string& what)>;
using ComplainOf = std::function<void(Owner file, const std::string& what)>;

// The parts of a NIC that all of its files share. They outlive the files.
struct Host {
  Objects* objects = nullptr;
  verbs::soft::EventLoop* loop = nullptr;
  const verbs::soft::SoftDeviceOptions* options = nullptr;
  ComplainOf complain;  // names the client
  // True: clients are in this process. They register memory by its address, and shares do not limit
  // them.
  bool own_addresses = false;
  int epoll_fd = -1;  // becomes readable when a register wakes the NIC
};

}  // namespace baton::nic

#endif  // LIB_NIC_HOST_H_
