#ifndef LIB_VERBS_MLX5_DOORBELL_H_
#define LIB_VERBS_MLX5_DOORBELL_H_

#include <cstdint>

namespace baton::verbs::mlx5 {

// A doorbell register. One process rings it at a time: the driver of the shard that it belongs to.
class Doorbell {
 public:
  virtual ~Doorbell() = default;
  // `bytes` are as they are to lie in the register. Whatever was written before is seen by the
  // device, and no later store of the caller's is seen before the device may have this one.
  virtual void Ring(uint64_t bytes) = 0;
};

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_DOORBELL_H_
