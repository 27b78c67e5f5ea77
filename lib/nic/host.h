#ifndef LIB_NIC_HOST_H_
#define LIB_NIC_HOST_H_

#include "lib/nic/loopback.h"
#include "lib/nic/objects.h"

namespace baton::nic {

// The parts of a NIC that all of its files share. They outlive the files.
struct Host {
  Objects* objects = nullptr;
  Loopback* loopback = nullptr;
  Complain complain;
  int epoll_fd = -1;  // becomes readable when a register wakes the NIC
};

}  // namespace baton::nic

#endif  // LIB_NIC_HOST_H_
