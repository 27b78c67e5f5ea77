#ifndef SUPERVISOR_DOCTOR_NEEDS_H_
#define SUPERVISOR_DOCTOR_NEEDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "proto/baton/v1/config.pb.h"

namespace baton::doctor {

// What one service asks of its machine. The numbers are those of a keeper, which is one process and
// has one service.
struct ServiceNeeds {
  std::string name;
  bool rdma = false;
  std::string device;  // empty: the only one of the machine
  uint32_t port = 1;
  std::vector<std::string> listeners;  // addresses
  uint32_t connections = 0;
  uint32_t workers = 0;
  uint64_t buffer_bytes = 0;

  uint64_t pinned_bytes = 0;  // registered
  // Queues that a provider such as mlx5 pins, too; those of others do not count. An estimate.
  uint64_t queue_bytes = 0;
  uint64_t descriptors = 0;  // open at once, about
  // As the driver asks them of the device.
  uint64_t completion_queue_entries = 0;
  uint32_t send_requests = 0;
  uint32_t receive_requests = 0;
};

// `service` is complete.
ServiceNeeds NeedsOf(const v1::ServiceConfig& service);
std::vector<ServiceNeeds> NeedsOf(const v1::Config& config);
// Of a service that says nothing about its size, on an RDMA device.
ServiceNeeds DefaultNeeds();

}  // namespace baton::doctor

#endif  // SUPERVISOR_DOCTOR_NEEDS_H_
