// An mlx5 device that libibverbs has opened, whose queues lie where a NIC in software reaches them.
#ifndef TESTS_LIB_NIC_ORACLE_OPENED_DEVICE_H_
#define TESTS_LIB_NIC_ORACLE_OPENED_DEVICE_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

#include "lib/nic/client.h"
#include "lib/verbs/mlx5/doorbell.h"
#include "tests/lib/nic/harness.h"
#include "tests/lib/nic/oracle/uverbs_device.h"

namespace baton::nic::oracle {

// One thread has it, so libmlx5 takes no locks. What it makes is destroyed before it ends.
class OpenedDevice {
 public:
  // The arena has the queues and `data_bytes` of registered memory. The client outlives the device.
  OpenedDevice(Client* client, uint64_t arena_bytes, size_t data_bytes, int access);
  OpenedDevice(const OpenedDevice&) = delete;
  OpenedDevice& operator=(const OpenedDevice&) = delete;
  ~OpenedDevice();

  // `entry_bytes`: 64 or 128. `channel` may be null.
  ibv_cq* MakeCompletionQueue(uint32_t entries, uint16_t entry_bytes = 64,
                              ibv_comp_channel* channel = nullptr) const;
  ibv_qp* MakeQueuePair(ibv_cq* completions, const ibv_qp_cap& capacity) const;
  // A queue pair goes to INIT with the access of the data, and then to RTS.
  void Init(ibv_qp* queue_pair) const;
  static void Connect(ibv_qp* queue_pair, uint32_t peer);

  UverbsDevice& device() { return device_; }
  ibv_context* context() const { return context_; }
  const ibv_mr& region() const { return *region_; }
  uint8_t* data() const { return data_; }

 private:
  uint8_t* Allocate(size_t size, size_t alignment);

  const int access_;
  SharedFile arena_;
  size_t used_ = sizeof(verbs::mlx5::DoorbellPage);
  UverbsDevice device_;
  ibv_context* context_ = nullptr;
  ibv_pd* protection_domain_ = nullptr;
  ibv_td* thread_domain_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_mr* region_ = nullptr;
  uint8_t* data_ = nullptr;
};

}  // namespace baton::nic::oracle

#endif  // TESTS_LIB_NIC_ORACLE_OPENED_DEVICE_H_
