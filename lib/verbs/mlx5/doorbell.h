#ifndef LIB_VERBS_MLX5_DOORBELL_H_
#define LIB_VERBS_MLX5_DOORBELL_H_

#include <cstdint>

namespace baton::verbs::mlx5 {

// A doorbell register. One process rings it at a time: the driver of the shard that it belongs to.
//
// The device sees all stores that the caller made before a ring. It sees no later store before it
// can see the ring. Values are in the byte order of the register.
class Doorbell {
 public:
  virtual ~Doorbell() = default;
  // Rings for a send queue. The caller has stored the record.
  virtual void Ring(uint64_t bytes) = 0;
  // Rings for a completion queue. The caller has stored the arm record.
  virtual void Arm(uint64_t bytes) = 0;
  // The driver calls it when it has stored the record of a receive queue. `failed` is the queue
  // pair's word of that name (QueuePairLayout). Hardware finds receives without being told. The
  // soft NIC has to be told of those that are posted in the error state.
  virtual void ReceivesPosted(uint32_t qp_number, const uint32_t& failed) = 0;
};

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_DOORBELL_H_
