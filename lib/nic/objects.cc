#include "lib/nic/objects.h"

#include "lib/nic/queue_pair.h"
#include "lib/nic/soft_options.h"

namespace baton::nic {
namespace {

uint64_t RandomSeed() {
  std::random_device random;
  return static_cast<uint64_t>(random()) << 32 | random();
}

}  // namespace

Objects::Objects(uint64_t seed) : random(seed != 0 ? seed : RandomSeed()) {}
Objects::~Objects() = default;

uint32_t Objects::NewKey() {
  for (;;) {
    const uint32_t key = static_cast<uint32_t>(random());
    if (key != 0 && key != MLX5_INVALID_LKEY && !regions.contains(key)) return key;
  }
}

// Gives numbers one after the other, so that a late ring does not reach a new queue of the same
// number.
uint32_t Objects::NewNumber() {
  for (;;) {
    last_number = (last_number + 1) & verbs::mlx5::kNumberMask;
    if (last_number != 0 && !queue_pairs.contains(last_number) &&
        !completion_queues.contains(last_number) && !shared_receive_queues.contains(last_number)) {
      return last_number;
    }
  }
}

QueuePair* Objects::FindQueuePair(uint32_t number) const {
  const auto found = queue_pairs.find(number);
  return found == queue_pairs.end() ? nullptr : found->second.get();
}

bool Objects::Invalidate(const Domain& domain, uint32_t rkey) {
  const auto found = regions.find(rkey);
  if (found == regions.end() || found->second.domain != domain || found->second.invalidated ||
      (found->second.access & verbs::soft::kSoftRemoteInvalidate) == 0) {
    return false;
  }
  return found->second.invalidated = true;
}

uint8_t* Objects::Reach(const Domain& domain, uint32_t key, uint64_t address, uint64_t length,
                        uint32_t access, bool remote) const {
  const auto found = regions.find(key);
  if (found == regions.end()) return nullptr;
  const Region& region = found->second;
  if (region.domain != domain || (region.access & access) != access) return nullptr;
  if (remote && region.invalidated) return nullptr;
  if (address < region.address || length > region.length ||
      address - region.address > region.length - length) {
    return nullptr;
  }
  return region.begin + (address - region.address);
}

}  // namespace baton::nic
